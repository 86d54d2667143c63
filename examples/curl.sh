#!/usr/bin/env bash
# A fine-tune by curl: ask for it, follow it, fetch the model.
#   onyx serve &
#   examples/curl.sh [http://127.0.0.1:8000] [directory for the model]
set -euo pipefail
url=${1:-http://127.0.0.1:8000}
to=${2:-curl-model}
api=$url/gradient-accumulation
key=(${ONYX_API_KEY:+-H "Authorization: Bearer $ONYX_API_KEY"})
ask() { curl --fail-with-body --silent --show-error --max-time 600 "${key[@]}" "$@"; }

made=$(ask --json '{
  "model_name": "onyx/tiny",
  "dataset_config": {"texts": ["the sky is blue", "grass is green", "snow is white"], "max_length": 64},
  "training_config": {"epochs": 2, "learning_rate": 1e-3},
  "user_id": 1,
  "target_effective_batch_size": 3
}' "$api/training/with-accumulation")
id=$(sed -E 's/.*"training_id": ?"([^"]+)".*/\1/' <<<"$made")
echo "job $id"

# A stream of server-sent events; it ends when the job does.
ask -N -H 'Accept: text/event-stream' "$api/training/$id/events"

ask "$api/training/$id" | grep -q '"success": \?true'
mkdir -p "$to"
ask "$api/training/$id/model" | tar -x --strip-components=1 -C "$to"
ls "$to"
