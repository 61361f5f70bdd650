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

// TaskProlog prints a sharer's variables in the form that Slurm reads, export NAME=value. If the GPU's daemon is
// missing it prints no MPS variables, and the job computes without MPS on the GPU that Slurm assigned.
func (h *Hook) TaskProlog(out io.Writer, get func(string) string) error {
	text, err := h.variables(get)
	_, werr := io.WriteString(out, text)
	return errors.Join(err, werr)
}

func (h *Hook) variables(get func(string) string) (text string, err error) {
	// With gres/shard, a percentage in the environment was inherited from the sharer that submitted this job.
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
		// Slurm gives the tasks of all components the first component's number (exec_task in task.c, 22.05 to 26.05).
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
	// The daemon serves one GPU, which its clients call 0. If a process without the daemon could find another GPU there,
	// the UUID names the right one; programs that expect a number can't read that.
	if !given.Named && (!given.Alone || get("CUDA_VISIBLE_DEVICES") != "0") {
		text += "export CUDA_VISIBLE_DEVICES=" + cmp.Or(given.UUID, "0") + "\n"
	}
	if get(handEnv) == "" && !given.ByHand {
		// Slurm caps threads at the share, which slows jobs that would fit side by side.
		text += "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100\n"
	}
	if given.MemLimitMiB > 0 {
		text += fmt.Sprintf("export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM\n", given.MemLimitMiB)
	}
	return text + fmt.Sprintf("export %s=%d\n", JobEnv, job), nil
}

// unserved returns the reason why the MPS server of the job's GPU would not serve the job's processes, nil if it would.
func (h *Hook) unserved(job int64, given handout) error {
	if _, err := os.Stat(h.Dir.running(job)); err != nil {
		// Slurm 22.05 runs no prolog for a requeued job if slurmd still has the job's first credential. The epilog of the
		// last known job would end the daemon while this job uses it.
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

// handEnv is set by job_submit.lua for batch jobs whose owner chose the part of the GPU: Slurm's thread limit stays.
// srun and salloc pass no environment to that script; the controller knows which of their jobs were sized by hand.
const handEnv = "SLURMBRIDGE_HAND"

// JobEnv holds the job for which the task prolog set the MPS variables. If it names another job, the variables were
// inherited, and etc/hooks/taskprolog unsets them.
const JobEnv = "SLURMBRIDGE_MPS_JOB"

// whatItAskedFor unsets the variables with which each srun would request a whole GPU again, though its job now holds
// shares.
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

// frameworkEnv keeps JAX and TensorFlow from taking the whole card at start, unless the job sets their variables
// itself. Sources: JAX's page on GPU memory allocation, TensorFlow's guide "Use a GPU".
func frameworkEnv(get func(string) string) string {
	lines := ""
	mark := ""
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

// frameworksEnv holds the job for which the task prolog set the frameworks' variables, and their values. If it names
// another job, they were inherited, and etc/hooks/taskprolog unsets them.
const frameworksEnv = "SLURMBRIDGE_FRAMEWORKS"

// handout is what task prologs need to know about a job with one GPU. As the job's user they can't read the job's file
// or all of Slurm's configuration.
//
// GPU is here because Slurm's variables don't say it reliably: it sets SLURM_JOB_GPUS for batch scripts and interactive
// steps and SLURM_STEP_GPUS for other steps, and leaves the other variable as inherited, perhaps from a job within
// which this one was submitted.
type handout struct {
	GPU  int    `json:"gpu"`
	UUID string `json:"uuid,omitempty"`
	// Named: the UUID goes into CUDA_VISIBLE_DEVICES even without MPS.
	Named bool `json:"named,omitempty"`
	// Alone: a job's processes can reach no GPU but its own.
	Alone bool `json:"alone,omitempty"`
	// MPS, MemLimitMiB and ByHand are the job's.
	MPS         bool  `json:"mps,omitempty"`
	MemLimitMiB int64 `json:"mem_limit_mib,omitempty"`
	ByHand      bool  `json:"by_hand,omitempty"`
	// Memory is the device number of the daemon's /dev/shm, through which server and clients share memory; 0 = unknown.
	Memory uint64 `json:"memory,omitempty"`
}

// handOut writes the handout of a job with one GPU. The caller holds the GPU's lock.
func (h *Hook) handOut(gpu int, j *JobFile) error {
	c, _ := card(h.Cards, gpu)
	o := handout{
		GPU: gpu, UUID: c.UUID, Named: h.named(c), Alone: h.alone(), MPS: j.MPS, MemLimitMiB: j.MemLimitMiB,
		ByHand: j.ByHand,
	}
	if j.MPS && h.MPS != nil {
		// The daemon may have been started in a job's mount namespace (PrologFlags=RunInJob).
		for _, pid := range h.MPS.running(gpu, controlName) {
			o.Memory = memory(filepath.Join(cmp.Or(h.Proc, "/proc"), strconv.Itoa(pid), "root"))
		}
	}
	return h.Dir.tell(j, o)
}

// memory returns the device number of /dev/shm below root ("" = this process's own), 0 if unknown.
func memory(root string) uint64 {
	info, err := os.Stat(filepath.Join(root, "/dev/shm"))
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Dev
}
