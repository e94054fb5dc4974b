{{- define "drakit.rbac" -}}
{{- if .Values.rbac.create }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "driver.fullname" . }}
  labels:
    {{- include "driver.labels" . | nindent 4 }}
rules:
  # Node UID, for the owner reference of the ResourceSlices.
  - apiGroups: [""]
    resources: [nodes]
    verbs: [get]
  - apiGroups: [resource.k8s.io]
    resources: [resourceslices]
    verbs: [list, watch, create, update, delete]
  - apiGroups: [resource.k8s.io]
    resources: [resourceclaims]
    verbs: [get]
  {{- with include "driver.rules" . }}
  {{- . | nindent 2 }}
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "driver.fullname" . }}
  labels:
    {{- include "driver.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "driver.fullname" . }}
subjects:
  - kind: ServiceAccount
    name: {{ include "driver.account" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}
{{- end -}}
