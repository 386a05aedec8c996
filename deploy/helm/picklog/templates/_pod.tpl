{{- /*
A Pod of one process: dict "root", "role", "words" (the command), "resources", "data" (emptyDir; none where a
StatefulSet claims its volume).
*/}}
{{- define "picklog.pod" -}}
{{- $ := .root }}
{{- $isStream := eq .role "stream" }}
metadata:
  labels:
    {{- include "picklog.labels" $ | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
    {{- with $.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- if $.Values.restartOnConfigChange }}
    checksum/config: {{ include (print $.Template.BasePath "/configmap.yaml") $ | sha256sum }}
    {{- end }}
    checksum/secret: {{ include (print $.Template.BasePath "/secret.yaml") $ | sha256sum }}
    {{- with $.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "picklog.fullname" $ }}
  automountServiceAccountToken: {{ and $.Values.dynamoPodDiscovery.enabled (not $isStream) }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $.Values.terminationGracePeriodSeconds }}
  {{- with $.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $.Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $role := .role }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "picklog.selector" $ | nindent 10 }}
          app.kubernetes.io/component: {{ $role }}
    {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: picklog
      image: {{ include "picklog.image" $ | quote }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      args: {{- toYaml .words | nindent 8 }}
      envFrom:
        - secretRef: {name: {{ $.Values.secret.name | quote }}}
      ports:
        - {name: http, containerPort: 8080}
      {{- if $isStream }}
      # a start waits for database and brokers, and answers nothing meanwhile: ten minutes, then it is tried anew
      startupProbe:
        httpGet: {path: /progress/, port: http}
        periodSeconds: 2
        failureThreshold: 300
      {{- else }}
      # a start folds the log first; /health answers meanwhile, /ready when it has caught up
      startupProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 2
        failureThreshold: 60
      {{- end }}
      livenessProbe:
        httpGet: {path: {{ ternary "/progress/" "/health" $isStream }}, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: {{ ternary "/progress/" "/ready" $isStream }}, port: http}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      lifecycle:
        preStop: {exec: {command: [sleep, "5"]}}
      resources: {{- toYaml .resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        runAsNonRoot: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: config, mountPath: /etc/picklog, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        - {name: data, mountPath: /data}
  volumes:
    - name: config
      configMap: {name: {{ include "picklog.fullname" $ }}}
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- with .data }}
    - name: data
      emptyDir: {{- toYaml . | nindent 8 }}
    {{- end }}
{{- end }}
