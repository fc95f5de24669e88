{{/* Names, labels, and what values must not say together. */}}

{{- define "embershard.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "embershard.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "embershard.ranks" -}}
{{ include "embershard.selector" . }}
app.kubernetes.io/component: ranks
{{- end -}}

{{- define "embershard.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "embershard.image" -}}
{{- $tag := default (printf "%s-%s" .Chart.AppVersion (ternary "gpu" "cpu" (gt (int .Values.gpus) 0))) .Values.image.tag -}}
{{- .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end -}}

{{- define "embershard.serviceAccount" -}}
{{- .Values.serviceAccount.create | ternary (default (include "embershard.fullname" .) .Values.serviceAccount.name) (default "default" .Values.serviceAccount.name) -}}
{{- end -}}

{{- define "embershard.claim" -}}
{{- default (printf "%s-data" (include "embershard.fullname" .)) .Values.persistence.existingClaim -}}
{{- end -}}

{{- define "embershard.configMap" -}}
{{- default (printf "%s-collection" (include "embershard.fullname" .)) .Values.collection.existingConfigMap -}}
{{- end -}}

{{- define "embershard.host" -}}
{{ include "embershard.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "embershard.serverName" -}}
{{- default (include "embershard.host" .) .Values.tls.serverName -}}
{{- end -}}

{{/* Whether `helm test` is wanted, and has what it asks with: yes, or nothing. */}}
{{- define "embershard.testable" -}}
{{- $v := .Values -}}
{{- if and $v.test.enabled (or (not $v.tokens.existingSecret) $v.test.tokenSecret) (or (not $v.tls.clientCertificates) $v.test.clientSecret) -}}
yes
{{- end -}}
{{- end -}}

{{/* How a port of a host's n-th rank is called: grpc, grpc-1, grpc-2 … */}}
{{- define "embershard.port" -}}
{{- index . 0 }}{{ if gt (int (index . 1)) 0 }}-{{ index . 1 }}{{ end -}}
{{- end -}}

{{/* Shorter than the grace of the pod, in which torchrun itself must end, too. */}}
{{- define "embershard.shutdown" -}}
{{- max 1 (sub (int .Values.terminationGracePeriodSeconds) 10) -}}
{{- end -}}

{{- define "embershard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "embershard.check" -}}
{{- $v := .Values -}}
{{- $hosts := int $v.hosts -}}{{- $ranks := int $v.ranksPerHost -}}{{- $gpus := int $v.gpus -}}
{{- if and (ne $v.mode "hosts") (ne $hosts 1) -}}
{{- fail (printf "mode %s has one host, and hosts is %d: set mode to hosts, or hosts to 1" $v.mode $hosts) -}}
{{- end -}}
{{- if and (eq $v.mode "hosts") (lt $hosts 2) -}}
{{- fail "mode hosts needs hosts of 2 or more: for one host set mode to ranks" -}}
{{- end -}}
{{- if and (eq $v.mode "process") (ne $ranks 1) -}}
{{- fail (printf "mode process is one rank, and ranksPerHost is %d: set mode to ranks" $ranks) -}}
{{- end -}}
{{- if and (eq $v.mode "hosts") (not (has "ReadWriteMany" $v.persistence.accessModes)) -}}
{{- fail "the ranks of several hosts share one data directory: persistence.accessModes must be [ReadWriteMany], with a storage class, or an existing claim, that can do it" -}}
{{- end -}}
{{- if and (gt $gpus 0) (ne $gpus $ranks) -}}
{{- fail (printf "every rank has one GPU of its own: gpus is %d and ranksPerHost %d; make them alike" $gpus $ranks) -}}
{{- end -}}
{{- if not (or $v.collection.toml $v.collection.existingConfigMap) -}}
{{- fail "there is nothing to serve: set collection.toml (--set-file collection.toml=shop.toml), or collection.existingConfigMap" -}}
{{- end -}}
{{- if and $v.collection.toml $v.collection.existingConfigMap -}}
{{- fail "collection.toml and collection.existingConfigMap are both set: leave one out" -}}
{{- end -}}
{{- if and (not $v.tls.existingSecret) (not $v.plaintext) -}}
{{- fail "without TLS whoever is on the network reads rows and tokens: set tls.existingSecret, or ask for it by plaintext=true" -}}
{{- end -}}
{{- if and $v.tls.existingSecret $v.plaintext -}}
{{- fail "tls.existingSecret and plaintext are both set: leave one out" -}}
{{- end -}}
{{- if and $v.tls.clientCertificates (not $v.tls.existingSecret) -}}
{{- fail "tls.clientCertificates needs tls.existingSecret, with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if and $v.plaintext $v.tokens.existingSecret -}}
{{- fail "tokens would travel in plaintext: set tls.existingSecret, or leave tokens.existingSecret out" -}}
{{- end -}}
{{- $more := sub $ranks 1 | int -}}
{{- range $name, $port := dict "service.port" (int $v.service.port) "metricsPort" (int $v.metricsPort) -}}
{{- if gt (add $port $more) 65535 -}}
{{- fail (printf "%s %d leaves no room for %d ranks: their ports would go up to %d, and the last there is is 65535" $name $port $ranks (add $port $more)) -}}
{{- end -}}
{{- if and (eq $v.mode "hosts") (ge (int $v.rendezvousPort) $port) (le (int $v.rendezvousPort) (add $port $more | int)) -}}
{{- fail (printf "rendezvousPort %d is one of the ranks' own, which %s has begin at %d, %d of them: give another" (int $v.rendezvousPort) $name $port $ranks) -}}
{{- end -}}
{{- end -}}
{{- if and (le (int $v.service.port) (add $v.metricsPort $more | int)) (le (int $v.metricsPort) (add $v.service.port $more | int)) -}}
{{- fail (printf "metricsPort %d is too near to service.port %d: each rank of a host, %d of them, has one port from either on" (int $v.metricsPort) (int $v.service.port) $ranks) -}}
{{- end -}}
{{- end -}}
