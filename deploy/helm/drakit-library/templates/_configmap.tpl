{{- define "drakit.configmap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "driver.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "driver.labels" . | nindent 4 }}
data:
  config.yaml: |
    {{- .Values.driverConfig | toYaml | nindent 4 }}
{{- end -}}
