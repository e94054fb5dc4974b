{{- define "driver.dra" -}}dra.cpu{{- end -}}
