{{- /* What this driver's pod has besides what every driver's has: nothing. */ -}}
{{- define "driver.dra" -}}dra.cpu{{- end -}}
{{- define "driver.writesClaims" -}}{{- end -}}
{{- define "driver.args" -}}{{- end -}}
{{- define "driver.mounts" -}}{{- end -}}
{{- define "driver.volumes" -}}{{- end -}}
{{- define "driver.rules" -}}{{- end -}}
