{{- /* Arguments, mounts, volumes and RBAC rules that only this driver needs. */ -}}
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
# Read to find the memory cgroup files that the kubelet manages itself.
- name: kubelet-config
  mountPath: {{ .Values.kubeletRootDir }}/config.yaml
  readOnly: true
{{- end -}}
{{- if .Values.kubeletConfigDir }}
# Drop-in files of the kubelet configuration.
- name: kubelet-config-dir
  mountPath: {{ .Values.kubeletConfigDir }}
  readOnly: true
{{- end -}}
{{- if or .Values.driverConfig.hugepagePools .Values.driverConfig.hugepageGrowth }}
# Hugepage pools are resized here; the /sys of a container is read-only.
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
# Events on the Node report which settings the kubelet manages itself.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if include "driver.writesClaims" . }}
# Binding conditions: pages are added before a pod is bound to the node, and the result is written to the claim status.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims/status]
  verbs: [patch]
# Kubernetes 1.36 and newer restrict this to the driver's own devices in claims allocated to its node.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims/driver]
  resourceNames: [dra.cpumem]
  verbs: ["associated-node:patch"]
{{- end }}
{{- if eq (toString .Values.driverConfig.memoryQoS) "all" }}
# Memory requests are only in pod specs; the runtime reports only limits.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end -}}
{{- end -}}
