{{- /* Extension points of a driver's chart. A chart must define "driver.dra", the DRA driver name, and may override the
others: Helm loads the templates of a chart after those of its dependencies, and the last definition wins. */ -}}
{{- define "driver.writesClaims" -}}{{- end -}}
{{- define "driver.args" -}}{{- end -}}
{{- define "driver.mounts" -}}{{- end -}}
{{- define "driver.volumes" -}}{{- end -}}
{{- define "driver.rules" -}}{{- end -}}
