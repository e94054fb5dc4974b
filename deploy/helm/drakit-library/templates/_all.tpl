{{- /* Every object of a driver except its DeviceClasses. */ -}}
{{- define "drakit.all" -}}
{{- range list "serviceaccount" "rbac" "configmap" "networkpolicy" "service" "daemonset" "admissionpolicy" }}
{{- with include (printf "drakit.%s" .) $ | trim }}
---
{{ . }}
{{- end }}
{{- end }}
{{- end -}}
