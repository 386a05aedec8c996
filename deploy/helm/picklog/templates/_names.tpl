{{- define "picklog.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* What a Service and a policy choose Pods by; never changes between releases of the chart. */}}
{{- define "picklog.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "picklog.labels" -}}
{{ include "picklog.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- define "picklog.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- /* A claim of a StatefulSet's own volume: dict "storage". */}}
{{- define "picklog.claim" -}}
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storage.storageClass }}
  storageClassName: {{ . | quote }}
  {{- end }}
  resources: {requests: {storage: {{ .storage.size | quote }}}}
{{- end }}
