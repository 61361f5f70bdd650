package prolog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// TaskProlog prints the variables that a sharer's processes need, as Slurm reads them: export NAME=value. Where the
// GPU's daemon isn't there it prints none: the job then computes without MPS, on the GPU that Slurm named.
func (h *Hook) TaskProlog(out io.Writer, get func(string) string) error {
	text, err := h.variables(get)
	_, werr := io.WriteString(out, text)
	return errors.Join(err, werr)
}

func (h *Hook) variables(get func(string) string) (text string, err error) {
	// Where GPUs are shared by gres/shard, a percentage is inherited from a sharer that has submitted the job.
	share, err := number(get("SLURM_SHARDS_ON_NODE"), 1)
	if err != nil && !h.Shard {
		share, _ = number(get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), 1)
	}
	if share <= 0 || share > 100 {
		return "", nil
	}
	text = whatItAskedFor(get)
	if h.FrameworkEnv {
		text += frameworkEnv(get)
	}
	job, _ := number(get("SLURM_JOB_ID"), 1)
	if get("SLURM_HET_SIZE") != "" {
		// Slurm names the first component to the tasks of all (exec_task of task.c, 22.05 to 26.05).
		job = componentOf(h.Proc, os.Getpid())
	}
	given := kept[handout](h.Dir.task(job))
	if given.Named { // with MPS or without
		text += "export CUDA_VISIBLE_DEVICES=" + given.UUID + "\n"
	}
	if share == 100 || h.MPS == nil {
		return text, nil
	}
	if err := h.unserved(job, given); err != nil {
		return text, fmt.Errorf("gpu %d: %w; the job shares the GPU without", given.GPU, err)
	}
	text += "export CUDA_MPS_PIPE_DIRECTORY=" + h.MPS.Pipe(given.GPU) + "\n"
	// The GPU's daemon knows this one GPU only, and a client counts from the daemon's first. Where a process that doesn't
	// reach the daemon could take another GPU for the first, its UUID names it; programs that read a number can't.
	if !given.Named && (!given.Alone || get("CUDA_VISIBLE_DEVICES") != "0") {
		text += "export CUDA_VISIBLE_DEVICES=" + cmp.Or(given.UUID, "0") + "\n"
	}
	if get(handEnv) == "" && !given.ByHand {
		// Slurm's cap, the share, slows jobs that would fit side by side.
		text += "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100\n"
	}
	if given.MemLimitMiB > 0 {
		text += fmt.Sprintf("export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM\n", given.MemLimitMiB)
	}
	return text + fmt.Sprintf("export %s=%d\n", JobEnv, job), nil
}

// unserved says why the MPS server of a job's GPU wouldn't serve the job's processes, nil = it would.
func (h *Hook) unserved(job int64, given handout) error {
	if _, err := os.Stat(h.Dir.running(job)); err != nil {
		// Slurm 22.05 runs no prolog for a requeued job if slurmd still has the job's first
		// credential. The epilog of the last known job would then end the daemon under it.
		return fmt.Errorf("no prolog has run for job %d: %w", job, err)
	}
	if !h.MPS.present(given.GPU) {
		return errors.New("no MPS daemon")
	}
	if !h.Dir.Server(given.GPU).Takes() {
		return errors.New("the MPS server takes no new clients")
	}
	if !given.MPS {
		return errors.New("no MPS server was ready for the job's prolog")
	}
	if given.Memory != 0 && memory("") != given.Memory {
		return errors.New("the job has a /dev/shm of its own (job_container.conf), where it doesn't reach the MPS server")
	}
	return nil
}

// handEnv is set where the owner of a batch job has asked for a part of a GPU by hand (job_submit.lua): that part stays
// what Slurm makes of it. Jobs by srun and salloc give the script no environment: of those the controller knows.
const handEnv = "SLURMBRIDGE_HAND"

// JobEnv is set to the job that the task prolog has set a sharer's variables for. Where it is another job's they are
// inherited, and the script around the hook unsets them.
const JobEnv = "SLURMBRIDGE_MPS_JOB"

// whatItAskedFor unsets the variables by which each srun in a job that asked for a whole GPU would ask for one again:
// the job holds shares.
func whatItAskedFor(get func(string) string) string {
	out := ""
	for _, name := range []string{"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_TRES_BIND"} {
		if get(name) != "" {
			out += "unset " + name + "\n"
		}
	}
	if each := get("SLURM_TRES_PER_TASK"); strings.Contains(each, "gpu") {
		rest := slices.DeleteFunc(strings.Split(each, ","), func(r string) bool { return strings.Contains(r, "gpu") })
		if len(rest) == 0 {
			return out + "unset SLURM_TRES_PER_TASK\n"
		}
		out += "export SLURM_TRES_PER_TASK=" + strings.Join(rest, ",") + "\n"
	}
	return out
}

// frameworkEnv keeps frameworks from taking the whole card at their start, unless the job says otherwise. Source: JAX's
// page on GPU memory allocation and TensorFlow's guide "Use a GPU".
func frameworkEnv(get func(string) string) string {
	lines, mark := "", ""
	for _, v := range []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false", "TF_FORCE_GPU_ALLOW_GROWTH=true"} {
		if name, _, _ := strings.Cut(v, "="); get(name) == "" {
			lines += "export " + v + "\n"
			mark += ":" + v
		}
	}
	if job, err := number(get("SLURM_JOB_ID"), 1); err == nil && lines != "" {
		lines += fmt.Sprintf("export %s=%d%s\n", frameworksEnv, job, mark)
	}
	return lines
}

// frameworksEnv is set to the job that the task prolog has set frameworks' variables for, and to these. Where it is
// another job's they are inherited, and the script around the hook unsets them.
const frameworksEnv = "SLURMBRIDGE_FRAMEWORKS"

// handout is what task prologs, which run as the job's user and know neither the job's file nor all of Slurm's
// configuration, need to know of a job with one GPU. It also tells them which GPU that is: Slurm says so in
// SLURM_JOB_GPUS to batch scripts and interactive steps and in SLURM_STEP_GPUS to other steps, and the variable that it
// leaves alone may be another job's, from within which this one was submitted.
type handout struct {
	GPU  int    `json:"gpu"`
	UUID string `json:"uuid,omitempty"`
	// Named: jobs of shares are told the UUID in any case.
	Named bool `json:"named,omitempty"`
	// Alone: no process of a job can reach another GPU of the node.
	Alone bool `json:"alone,omitempty"`
	// MPS, MemLimitMiB and ByHand are the job's.
	MPS         bool  `json:"mps,omitempty"`
	MemLimitMiB int64 `json:"mem_limit_mib,omitempty"`
	ByHand      bool  `json:"by_hand,omitempty"`
	// Memory is the file system of the MPS daemon's /dev/shm, where server and clients meet; 0 = not known.
	Memory uint64 `json:"memory,omitempty"`
}

// handOut stores the handout of a job with one GPU. The caller holds the GPU's lock.
func (h *Hook) handOut(gpu int, j *Job) error {
	c, _ := card(h.Cards, gpu)
	o := handout{
		GPU: gpu, UUID: c.UUID, Named: h.named(c), Alone: h.alone(), MPS: j.MPS, MemLimitMiB: j.MemLimitMiB,
		ByHand: j.ByHand,
	}
	if j.MPS && h.MPS != nil {
		// The daemon may have begun in the namespace of a job (PrologFlags=RunInJob).
		for _, pid := range h.MPS.running(gpu, controlName) {
			o.Memory = memory(filepath.Join(cmp.Or(h.Proc, "/proc"), strconv.Itoa(pid), "root"))
		}
	}
	return h.Dir.tell(j, o)
}

// memory is the file system of /dev/shm in a root folder ("" = one's own), 0 = none is known.
func memory(root string) uint64 {
	info, err := os.Stat(filepath.Join(root, "/dev/shm"))
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Dev
}
