# JupyterHub: notebooks on shared GPUs, by batchspawner's SlurmSpawner with its own batch script. Users choose how much
# of a GPU's memory theirs may take.
import batchspawner  # noqa: F401  registers its API

MEMORY = ["4G", "8G", "16G"]

c = get_config()  # noqa: F821
c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.SlurmSpawner.req_gres = "gpu:shared"
c.SlurmSpawner.options_form = 'GPU memory: <select name="gpu_memory">%s</select>' % "".join(
    "<option>%s</option>" % m for m in MEMORY
)


def options_from_form(form):
    chosen = form.get("gpu_memory", MEMORY)[0]
    # What else somebody sends would be a line of the batch script.
    return {"options": "--comment=share:interactive=" + (chosen if chosen in MEMORY else MEMORY[0])}


c.SlurmSpawner.options_from_form = options_from_form
c.SlurmSpawner.req_options = options_from_form({})["options"]
