{{- define "drakit.admissionpolicy" -}}
{{- if .Values.admissionPolicy.create }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "driver.fullname" . }}
  labels:
    {{- include "driver.labels" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE, DELETE]
        resources: [resourceslices]
  matchConditions:
    - name: is-this-driver
      expression: >-
        request.userInfo.username == "system:serviceaccount:{{ .Release.Namespace }}:{{ include "driver.account" . }}"
  variables:
    - name: userNode
      expression: >-
        request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')
    - name: slice
      expression: >-
        request.operation == "DELETE" ? oldObject : object
    - name: sliceNode
      expression: >-
        variables.slice.spec.?nodeName.orValue('')
  validations:
    - expression: variables.userNode != ""
      reason: Forbidden
      message: no node name in the credential; the driver must use its pod's own service account token
    - expression: variables.userNode == variables.sliceNode
      reason: Forbidden
      messageExpression: >-
        "this driver runs on node '" + variables.userNode + "' and may not write slices of '" + variables.sliceNode + "'"
    - expression: variables.slice.spec.driver == "{{ include "driver.dra" . }}"
      reason: Forbidden
      messageExpression: >-
        "the driver {{ include "driver.dra" . }} may not write slices of the driver '" + variables.slice.spec.driver + "'"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "driver.fullname" . }}
  labels:
    {{- include "driver.labels" . | nindent 4 }}
spec:
  policyName: {{ include "driver.fullname" . }}
  validationActions: [Deny]
{{- if include "driver.writesClaims" . }}
---
# RBAC cannot restrict a patch of the claim status by node or field; this policy does.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "driver.fullname" . }}-claims
  labels:
    {{- include "driver.labels" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: [resourceclaims, resourceclaims/status]
  matchConditions:
    - name: is-this-driver
      expression: >-
        request.userInfo.username == "system:serviceaccount:{{ .Release.Namespace }}:{{ include "driver.account" . }}"
  variables:
    - name: userNode
      expression: >-
        request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')
    # The driver may write only the status of its own devices on its own node. The pool name is the node name.
    - name: foreignBefore
      expression: >-
        oldObject.?status.devices.orValue([]).filter(d, d.driver != "{{ include "driver.dra" . }}" || d.pool != variables.userNode)
    - name: foreignAfter
      expression: >-
        object.?status.devices.orValue([]).filter(d, d.driver != "{{ include "driver.dra" . }}" || d.pool != variables.userNode)
  validations:
    - expression: request.operation == "UPDATE" && request.subResource == "status"
      reason: Forbidden
      message: this driver may write only the status of claims
    - expression: variables.userNode != ""
      reason: Forbidden
      message: no node name in the credential; the driver must use its pod's own service account token
    - expression: >-
        oldObject.?status.allocation.devices.results.orValue([]).exists(r,
        r.driver == "{{ include "driver.dra" . }}" && r.pool == variables.userNode)
      reason: Forbidden
      messageExpression: >-
        "this driver runs on node '" + variables.userNode + "' and may not write the status of claims without its devices"
    - expression: >-
        object.?status.allocation == oldObject.?status.allocation &&
        object.?status.reservedFor == oldObject.?status.reservedFor
      reason: Forbidden
      message: this driver may not change the allocation or reservedFor of a claim
    - expression: >-
        variables.foreignAfter.all(d, d in variables.foreignBefore) &&
        variables.foreignBefore.all(d, d in variables.foreignAfter)
      reason: Forbidden
      messageExpression: >-
        "this driver may write only the status of devices of {{ include "driver.dra" . }} on node '" + variables.userNode + "'"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "driver.fullname" . }}-claims
  labels:
    {{- include "driver.labels" . | nindent 4 }}
spec:
  policyName: {{ include "driver.fullname" . }}-claims
  validationActions: [Deny]
{{- end }}
{{- end }}
{{- end -}}
