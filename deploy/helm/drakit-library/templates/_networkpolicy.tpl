{{- define "drakit.networkpolicy" -}}
{{- if .Values.networkPolicy.create }}
# Peers that may reach the port of /metrics and /readyz. Kubelet probes come from the node itself and are always allowed.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "driver.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "driver.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "driver.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  {{- with .Values.networkPolicy.from }}
  ingress:
    - from:
        {{- toYaml . | nindent 8 }}
      ports:
        - port: http
          protocol: TCP
  {{- else }}
  ingress: []
  {{- end }}
{{- end }}
{{- end -}}
