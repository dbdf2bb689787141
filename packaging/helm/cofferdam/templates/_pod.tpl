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
{{/* What gate asks where nobody says it: the engines behind the gateway, or the gateway of our own. Not the gateway
     where gate is its init container: that would wait for itself. */}}
{{- define "fleet" -}}
{{- if .Values.fleet -}}
{{ .Values.fleet }}
{{- else -}}
[defaults]
key = { env = "FLEET_KEY" }
{{- range $i, $engine := default (list "http://gateway:8080") .Values.engines }}
{{- $role := regexFind "^(prefill|decode)=" $engine | trimSuffix "=" }}
{{- $url := regexReplaceAll "^(prefill|decode)=|#.*$" $engine "" }}
{{- if hasPrefix "dns+" $url }}{{ fail (printf "%s is one engine for each address of a name: say in `fleet` which gate is to ask" $engine) }}{{ end }}

[[node]]
name = {{ empty $.Values.engines | ternary "gateway" (printf "%s-%d" (default "server" $role) $i) | quote }}
url = {{ $url | quote }}
role = {{ default "server" $role | quote }}
{{- end }}

[allow]
introspection-closed = "closed by NetworkPolicy"
{{- end }}
{{- end }}
