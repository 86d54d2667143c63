# Document 002's commands, as they are printed there.

# Configure gradient accumulation
curl -X POST http://localhost:8000/gradient-accumulation/config \
  -H "Content-Type: application/json" \
  -d '{
    "accumulation_steps": 4,
    "target_effective_batch_size": 32,
    "mixed_precision": true,
    "gradient_clipping": 1.0
  }'

# Get configuration
curl http://localhost:8000/gradient-accumulation/config/accumulation_1234567890

# Train with gradient accumulation
curl -X POST http://localhost:8000/gradient-accumulation/training/with-accumulation \
  -H "Content-Type: application/json" \
  -d '{
    "model_name": "gpt2",
    "dataset_config": {
      "texts": ["sample text 1", "sample text 2"],
      "max_length": 512
    },
    "training_config": {
      "epochs": 3,
      "learning_rate": 5e-5
    },
    "user_id": 123,
    "target_effective_batch_size": 64,
    "accumulation_steps": 8
  }'

# Large batch training
curl -X POST http://localhost:8000/gradient-accumulation/training/large-batch \
  -H "Content-Type: application/json" \
  -d '{
    "model_name": "gpt2",
    "dataset_config": {
      "texts": ["sample text 1", "sample text 2"],
      "max_length": 512
    },
    "training_config": {
      "epochs": 3,
      "learning_rate": 5e-5
    },
    "user_id": 123,
    "target_effective_batch_size": 128
  }'

# Calculate optimal batch size
curl -X POST http://localhost:8000/gradient-accumulation/calculate-batch-size \
  -H "Content-Type: application/json" \
  -d '{
    "model_name": "gpt2",
    "target_effective_batch_size": 64,
    "gpu_ids": [0, 1, 2, 3]
  }'

# Simple calculation
curl "http://localhost:8000/gradient-accumulation/calculate-batch-size?model_name=gpt2&target_batch_size=64&gpu_ids=0&gpu_ids=1&gpu_ids=2&gpu_ids=3"

# Get accumulation statistics
curl http://localhost:8000/gradient-accumulation/stats/accumulation_1234567890

# Get all statistics
curl http://localhost:8000/gradient-accumulation/stats

# Get performance metrics
curl http://localhost:8000/gradient-accumulation/performance/metrics

# Get performance recommendations
curl "http://localhost:8000/gradient-accumulation/performance/recommendations?model_size=large&target_batch_size=64"

# Calculate effective batch size
curl -X POST "http://localhost:8000/gradient-accumulation/calculate-effective-batch-size?actual_batch_size=8&accumulation_steps=4"

# Calculate accumulation steps
curl -X POST "http://localhost:8000/gradient-accumulation/calculate-accumulation-steps?target_batch_size=32&actual_batch_size=8"

# Adjust learning rate
curl -X POST "http://localhost:8000/gradient-accumulation/adjust-learning-rate?base_lr=0.001&accumulation_steps=4"

# Optimize batch size
curl -X POST http://localhost:8000/gradient-accumulation/calculate-batch-size \
  -d '{"model_name": "gpt2", "target_effective_batch_size": 32}'

# Check gradient norms
curl http://localhost:8000/gradient-accumulation/stats/training_id

# Check configuration
curl http://localhost:8000/gradient-accumulation/config/training_id
