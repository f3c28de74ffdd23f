"""The engine from Python: the loop that `esurge generate` runs, with three prompts.

    python examples/python_loop.py [MODEL]

MODEL is a Hugging Face folder, a .gguf file or a Hub id; without it the default model is taken.
"""

import sys

from runner import eSurgeRunner
from scheduler import EngineRequest, SamplingParams, Scheduler

PROMPTS = ["The capital of France is", "One, two, three,", "Once upon a time"]

runner = eSurgeRunner.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else None)
scheduler = Scheduler.from_runner(runner, max_num_batched_tokens=2048, enable_prefix_caching=True)
tokenizer = runner.checkpoint.load_tokenizer()
stop_token_ids = sorted(runner.checkpoint.stop_token_ids(tokenizer))

for number, prompt in enumerate(PROMPTS):
    ids = tokenizer(prompt)["input_ids"]
    scheduler.add_request(
        EngineRequest(
            request_id=f"r{number}",
            prompt_token_ids=ids,
            sampling_params=SamplingParams(max_tokens=32, temperature=0),
            eos_token_id=stop_token_ids,
        )
    )

generated: dict[str, list[int]] = {f"r{number}": [] for number in range(len(PROMPTS))}
while scheduler.get_num_unfinished_requests():
    scheduler_output = scheduler.schedule()
    model_runner_output = runner.run(scheduler_output)
    for client_index, outputs in scheduler.update_from_output(scheduler_output, model_runner_output).items():
        for output in outputs.outputs:
            generated[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                text = tokenizer.decode(generated[output.request_id], skip_special_tokens=True)
                print(f"{output.request_id} ({output.finish_reason}, client {client_index}): {text!r}")
