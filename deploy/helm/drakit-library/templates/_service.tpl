{{- define "drakit.service" -}}
{{- if .Values.metricsService.create }}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "driver.fullname" . }}-metrics
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "driver.labels" . | nindent 4 }}
  annotations:
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ .Values.healthPort | quote }}
spec:
  clusterIP: None
  selector:
    {{- include "driver.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .Values.healthPort }}
      targetPort: http
{{- end }}
{{- end -}}
