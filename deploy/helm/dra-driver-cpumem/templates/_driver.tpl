{{- /* What this driver's pod has besides what every driver's has. */ -}}
{{- define "driver.args" -}}{{- end -}}
{{- define "driver.mounts" -}}
{{- if .Values.kubeletConfig -}}
# To see which of the memory knobs the kubelet writes itself.
- name: kubelet-config
  mountPath: {{ .Values.kubeletRootDir }}/config.yaml
  readOnly: true
{{- end -}}
{{- if or .Values.driverConfig.hugepagePools .Values.driverConfig.hugepageGrowth }}
# Page pools are resized here; a container's own /sys is read-only.
- name: numa-nodes
  mountPath: /sys/devices/system/node
{{- end -}}
{{- end -}}
{{- define "driver.volumes" -}}
{{- if .Values.kubeletConfig -}}
- name: kubelet-config
  hostPath:
    path: {{ .Values.kubeletConfig }}
    type: File
{{- end -}}
{{- if or .Values.driverConfig.hugepagePools .Values.driverConfig.hugepageGrowth }}
- name: numa-nodes
  hostPath:
    path: /sys/devices/system/node
    type: Directory
{{- end -}}
{{- end -}}
{{- define "driver.rules" -}}
# To say on the Node what the kubelet does itself.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if eq (toString .Values.driverConfig.memoryQoS) "all" }}
# What pods request is in their specs only; the runtime knows limits.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end -}}
{{- end -}}
