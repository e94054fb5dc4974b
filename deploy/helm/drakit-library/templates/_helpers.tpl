{{- define "driver.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- define "driver.fullname" -}}
{{- .Values.fullnameOverride | default (include "driver.name" .) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- define "driver.account" -}}
{{- .Values.serviceAccount.name | default (include "driver.fullname" .) -}}
{{- end -}}
{{- define "driver.labels" -}}
app.kubernetes.io/name: {{ include "driver.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
{{- define "driver.selector" -}}
app.kubernetes.io/name: {{ include "driver.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
