{{- /* What this driver's pod has besides what every driver's has. */ -}}
{{- define "driver.dra" -}}dra.cpumem{{- end -}}
{{- define "driver.writesClaims" -}}
{{- if and .Values.driverConfig.hugepageGrowth (ne (toString .Values.driverConfig.hugepageBinding) "false") -}}true{{- end -}}
{{- end -}}
{{- define "driver.args" -}}
{{- with .Values.kubeletConfigDir -}}
- --kubelet-config-dir={{ . }}
{{- end -}}
{{- end -}}
{{- define "driver.mounts" -}}
{{- if .Values.kubeletConfig -}}
# To see which of the memory knobs the kubelet writes itself.
- name: kubelet-config
  mountPath: {{ .Values.kubeletRootDir }}/config.yaml
  readOnly: true
{{- end -}}
{{- if .Values.kubeletConfigDir }}
# Drop-ins over the kubelet's configuration file.
- name: kubelet-config-dir
  mountPath: {{ .Values.kubeletConfigDir }}
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
{{- if .Values.kubeletConfigDir }}
- name: kubelet-config-dir
  hostPath:
    path: {{ .Values.kubeletConfigDir }}
    type: Directory
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
{{- if include "driver.writesClaims" . }}
# To add pages before a pod is bound to the node, and to tell the scheduler.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims/status]
  verbs: [patch]
# Since 1.36: only the driver's own devices, and only in claims of its own node.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims/driver]
  resourceNames: [dra.cpumem]
  verbs: ["associated-node:patch"]
{{- end }}
{{- if eq (toString .Values.driverConfig.memoryQoS) "all" }}
# What pods request is in their specs only; the runtime knows limits.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end -}}
{{- end -}}
