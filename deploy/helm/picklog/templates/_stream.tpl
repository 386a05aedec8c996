{{- /*
The sections `log` and `audit` of the configuration where stream workers write the rows: what must go together is
refused here, since Pods would start, and rows would wait in the topic, or go where nobody looks. Returns nothing.
*/}}
{{- define "picklog.refuseStream" -}}
{{- $audit := default dict .Values.config.audit }}
{{- $sink := default (ternary "stream" "sql" .Values.stream.enabled) $audit.sink }}
{{- if and .Values.stream.enabled (ne $sink "stream") }}
{{- fail (printf "stream.enabled is true and config.audit.sink is %s: remove config.audit.sink, or stream.enabled" $sink) }}
{{- end }}
{{- if and (eq $sink "stream") (not .Values.stream.enabled) (not .Values.stream.elsewhere) }}
{{- fail "config.audit.sink is stream and no worker would write the rows: set stream.enabled, or stream.elsewhere where others run them" }}
{{- end }}
{{- if and .Values.stream.enabled .Values.stream.elsewhere }}
{{- fail "stream.enabled and stream.elsewhere are both true: choose one" }}
{{- end }}
{{- if .Values.stream.enabled }}
{{- if eq (toString $audit.enabled) "false" }}
{{- fail "stream.enabled is true and config.audit.enabled is false: no rows would be sent" }}
{{- end }}
{{- if or (not $audit.url) (hasPrefix "sqlite" (toString $audit.url)) }}
{{- fail "stream.enabled is true and config.audit.url is no server: each worker would write a file of its own; set a postgresql address" }}
{{- end }}
{{- if not (dig "log" "kafka" "bootstrap_servers" false .Values.config) }}
{{- fail "stream.enabled is true and config.log.kafka.bootstrap_servers is empty: workers read a topic" }}
{{- end }}
{{- range $key, $value := pick (default dict $audit.stream) "web_bind" "web_port" }}
{{- fail (printf "config.audit.stream.%s is set: the chart gives workers the address that its probes and its policy know" $key) }}
{{- end }}
{{- if .Values.networkPolicy.enabled }}
{{- range list "kafka" "database" }}
{{- if not (or (index $.Values.networkPolicy .).to $.Values.networkPolicy.additionalEgress) }}
{{- fail (printf "stream.enabled is true and networkPolicy.%s.to is empty: workers could not reach it" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
