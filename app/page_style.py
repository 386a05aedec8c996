"""The style sheet of pages that Picklog writes: light and dark, readable on paper and on a telephone."""

STYLE = """
:root{--ink:#1c2430;--soft:#5b6776;--line:#e3e7ec;--paper:#f6f7f9;--card:#fff;--before:#7d93ad;
--after:#d9731a;--even:#aab4c0;--one:#d9731a;--two:#2f6fb3;--three:#3a8f6b}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b4;--line:#2c3540;--paper:#12161c;
--card:#1a2028;--before:#6f89a8;--after:#f08c3a;--even:#4c5866;--one:#f08c3a;--two:#5ba0e6;--three:#58b88e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",
Roboto,"Noto Sans",sans-serif;font-variant-numeric:tabular-nums}
main{max-width:860px;margin:0 auto;padding:40px 20px 80px}
header{margin-bottom:28px}
.kicker{margin:0;color:var(--after);font-weight:600;letter-spacing:.06em;text-transform:uppercase;font-size:12px}
h1{margin:4px 0 6px;font-size:28px;line-height:1.2;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{margin:0;font-size:17px}
h3{margin:0 0 6px;font-size:14px;overflow-wrap:anywhere}
h3 small{display:block;color:var(--soft);font-weight:400;font-size:12.5px}
.sub,.note,.legend{color:var(--soft);margin:0;overflow-wrap:anywhere}
.note{margin:10px 0 4px}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 22px;
margin:18px 0}
.head{display:flex;flex-wrap:wrap;gap:8px 18px;align-items:baseline;justify-content:space-between;
margin-bottom:12px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:14px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px}
.scroll{overflow-x:auto}table.wide th,table.wide td{white-space:nowrap}
.tile b{display:block;font-size:18px;line-height:1.2;letter-spacing:-.01em;white-space:nowrap}
.tile span{display:block;margin-top:4px}
.tile small{color:var(--soft)}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 6px 0 14px;vertical-align:-1px}
.key:first-child{margin-left:0}
.key.before{background:var(--before)}.key.after{background:var(--after)}
.key.one{background:var(--one)}.key.two{background:var(--two)}.key.three{background:var(--three)}
svg{display:block;width:100%;height:auto;margin:8px 0;font:12px system-ui,sans-serif}
svg .tick{fill:var(--soft);font-size:11px}svg .axis{fill:var(--soft);font-size:11px}
svg .name{fill:var(--ink);font-size:12px}svg .cell{fill:var(--ink);font-size:12px;font-weight:600}
svg .grid{stroke:var(--line)}svg .even{stroke:var(--even);stroke-dasharray:4 4}
svg rect.before{fill:var(--before)}svg rect.after{fill:var(--after)}
svg .area{fill:var(--after);fill-opacity:.28;stroke:var(--after);stroke-width:1.4}
svg .line{fill:none;stroke-width:2.4;stroke-linejoin:round}
svg .line.before{stroke:var(--before)}svg .line.after{stroke:var(--after)}
svg .line.one{stroke:var(--one)}svg .line.two{stroke:var(--two)}svg .line.three{stroke:var(--three)}
svg .dot.one{fill:var(--one)}svg .dot.two{fill:var(--two)}svg .dot.three{fill:var(--three)}
svg .kept{fill:var(--before);fill-opacity:.55}svg .moved{fill:var(--after);fill-opacity:.75}
svg .shade{fill:var(--after)}
table{width:100%;border-collapse:collapse;margin:10px 0;font-size:14px}
th,td{text-align:left;padding:7px 10px 7px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{color:var(--soft);font-weight:500;font-size:12.5px}
tr.changed td{color:var(--after);font-weight:600}
.meter{display:inline-block;width:90px;height:8px;border-radius:4px;background:var(--line);margin-right:8px;
vertical-align:1px;overflow:hidden}
.meter i{display:block;height:100%;background:var(--after)}
article{padding:12px 0;border-top:1px solid var(--line)}
article:first-of-type{border-top:0;padding-top:0}
ul{margin:0;padding-left:18px}li{margin:2px 0;overflow-wrap:anywhere}
@media print{body{background:#fff}section,.tile{break-inside:avoid}}
"""
