{{/* What every pod has: no account, no root, nothing to write to. */}}
{{- define "pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- end }}
{{- define "container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}
{{- define "fleet-key" -}}
env:
  - name: FLEET_KEY
    valueFrom:
      secretKeyRef: { name: fleet-key, key: key }
{{- end }}
{{- define "weights" -}}
- name: weights
  persistentVolumeClaim: { claimName: {{ .Values.weights.claim }}, readOnly: true }
{{- end }}
