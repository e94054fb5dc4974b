{{- define "drakit.daemonset" -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ include "driver.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "driver.labels" . | nindent 4 }}
spec:
  selector:
    matchLabels:
      {{- include "driver.selector" . | nindent 6 }}
  updateStrategy:
    {{- toYaml .Values.updateStrategy | nindent 4 }}
  template:
    metadata:
      labels:
        {{- include "driver.labels" . | nindent 8 }}
        {{- with .Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/config: {{ .Values.driverConfig | toYaml | sha256sum }}
        {{- with .Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "driver.account" . }}
      priorityClassName: {{ .Values.priorityClassName }}
      terminationGracePeriodSeconds: 10
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      tolerations:
        {{- toYaml .Values.tolerations | nindent 8 }}
      containers:
        - name: driver
          image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          command: [{{ .Chart.Name }}]
          args:
            - --config=/etc/drakit/config.yaml
            - --kubelet-root-dir={{ .Values.kubeletRootDir }}
            - --cdi-dir={{ .Values.cdiDir }}
            - --nri-socket={{ .Values.nriSocketDir }}/nri.sock
            - --cgroup-root=/host/cgroup
            - --bind-address=:{{ .Values.healthPort }}
            - --log-level={{ .Values.logLevel }}
            - --log-format={{ .Values.logFormat }}
            {{- with include "driver.args" . }}
            {{- . | nindent 12 }}
            {{- end }}
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            - name: POD_UID
              valueFrom:
                fieldRef:
                  fieldPath: metadata.uid
          ports:
            - name: http
              containerPort: {{ .Values.healthPort }}
          # Access is limited to the sockets and directories mounted below; root, because they are owned by root.
          securityContext:
            privileged: false
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            runAsUser: 0
            capabilities:
              drop: [ALL]
            seccompProfile:
              type: RuntimeDefault
            {{- with .Values.seLinuxOptions }}
            seLinuxOptions:
              {{- toYaml . | nindent 14 }}
            {{- end }}
          # No liveness probe: any client that reaches the port could make it fail. A driver that hangs terminates itself.
          readinessProbe:
            httpGet:
              path: /readyz
              port: http
            periodSeconds: 5
            timeoutSeconds: 5
          resources:
            {{- toYaml .Values.resources | nindent 12 }}
          volumeMounts:
            - name: config
              mountPath: /etc/drakit
              readOnly: true
            - name: plugins
              mountPath: {{ .Values.kubeletRootDir }}/plugins
            - name: registry
              mountPath: {{ .Values.kubeletRootDir }}/plugins_registry
            - name: cdi
              mountPath: {{ .Values.cdiDir }}
            # The directory, not the socket: the runtime creates a new socket at every start.
            - name: nri
              mountPath: {{ .Values.nriSocketDir }}
            - name: cgroup
              mountPath: /host/cgroup
            {{- with include "driver.mounts" . }}
            {{- . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ include "driver.fullname" . }}
        - name: plugins
          hostPath:
            path: {{ .Values.kubeletRootDir }}/plugins
            type: DirectoryOrCreate
        - name: registry
          hostPath:
            path: {{ .Values.kubeletRootDir }}/plugins_registry
            type: DirectoryOrCreate
        - name: cdi
          hostPath:
            path: {{ .Values.cdiDir }}
            type: DirectoryOrCreate
        - name: nri
          hostPath:
            path: {{ .Values.nriSocketDir }}
            type: DirectoryOrCreate
        - name: cgroup
          hostPath:
            path: {{ .Values.cgroupRoot }}
            type: Directory
        {{- with include "driver.volumes" . }}
        {{- . | nindent 8 }}
        {{- end }}
{{- end -}}
