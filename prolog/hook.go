package prolog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Hook is one node's hooks.
type Hook struct {
	Dir Dir
	MPS *MPS // nil = none on this node
	// Shard: GPUs are shared by gres/shard. A prolog then can't see whether a job
	// shares, so every job with one GPU gets a daemon, and a server with its first client; the task prolog knows.
	Shard bool
	// Controller is asked what CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is to hold a sharer to on Volta and later, by drivers
	// from release 495 on (CUDA 11.5): what its application needs and a part of what is left. An allocation beyond that
	// fails. nil = there are no limits.
	Controller *Controller
	// FrameworkEnv: a job that may share is told not to take the whole card at its start; see frameworkEnv.
	FrameworkEnv bool
	// Cards are the node's GPUs that are known.
	Cards []Card
	// Constrains: Slurm keeps each job's processes to the GPUs that it has.
	Constrains bool
	// HidesMemory: each job has a /dev/shm of its own, from where its processes don't reach an MPS server.
	HidesMemory bool
	// Contains: Slurm has a process of its own on each of a job's nodes for as long as the job is there.
	Contains bool
	// Proc is where processes are looked for; "" = /proc.
	Proc string
	Now  func() time.Time
}

// Prolog writes the job's file and has an MPS daemon ready for a sharer.
func (h *Hook) Prolog(ctx context.Context, get func(string) string) error {
	j, err := FromEnv(get, h.Now())
	if errors.Is(err, ErrNoGPU) {
		return nil
	}
	if err != nil {
		return err
	}
	h.learn(j.GPUs, strings.Split(get("CUDA_VISIBLE_DEVICES"), ","))
	// One failure doesn't stop the rest: without a record there can still be MPS.
	var errs []error
	for _, g := range j.GPUs {
		c, known := card(h.Cards, g)
		j.UUIDs = append(j.UUIDs, c.UUID)
		if !known && len(h.Cards) > 0 {
			errs = append(errs, fmt.Errorf("gpu %d: which of the node's cards Slurm means isn't certain by its "+
				"configuration; job %d goes without MPS and without a record of its use", g, j.JobID))
		}
	}
	errs = append(errs, h.Dir.Begin(j))
	// Before any lock is held: other hooks don't wait for the controller's answer.
	errs = append(errs, h.askTerms(ctx, j))
	for _, g := range j.GPUs {
		errs = append(errs, h.onGPU(ctx, g, func(jobs []*Job) error {
			others := h.othersThan(j, jobs)
			var err, given, left error
			if len(others) == 0 && h.MPS != nil && !j.MPS { // else they are the job's own: its prolog was called before
				// A daemon and its server have outlived the epilog of their last job: the server may keep this job from the GPU.
				_, left = h.MPS.clear(g)
			}
			if len(j.GPUs) > 1 {
				return left
			}
			c, known := card(h.Cards, g)
			switch {
			case !h.mayShare(j):
			case !known && len(h.Cards) > 0: // as said above
			case c.Exclusive && h.HidesMemory:
				// A server would keep the GPU from the job itself.
				err = errors.New("it is in the mode EXCLUSIVE_PROCESS, and jobs have a /dev/shm of their own, where they don't " +
					"reach an MPS server: jobs that share it fail")
			case h.MPS == nil:
				err = errors.New("nvidia-cuda-mps-control or nvidia-cuda-mps-server isn't on this node: jobs that share a GPU " +
					"take turns")
			default:
				err = h.share(ctx, g, j, others)
			}
			if h.mayShare(j) && c.Exclusive && len(others) > 0 {
				err = errors.Join(err, h.barred(j))
			}
			if h.mayShare(j) || h.named(c) { // Slurm tells a job of shares no more than an instance's number
				given = h.handOut(g, j)
			}
			return errors.Join(left, given, err)
		}))
	}
	if len(j.GPUs) == 1 && j.MPS && j.Sharer() && !h.MPS.multiuser(j.GPUs[0]) {
		errs = append(errs, h.awaitServer(ctx, j.GPUs[0], j))
	}
	return errors.Join(errs...)
}

// othersThan are those of a GPU's jobs beside j that may share it.
func (h *Hook) othersThan(j *Job, jobs []*Job) []*Job {
	return slices.DeleteFunc(slices.Clone(jobs), func(o *Job) bool { return o.JobID == j.JobID || !h.mayShare(o) })
}

// awaitServer waits until the server that j is to compute through takes clients: of one that fails only when the job's
// first process needs it, CUDA would tell the process. If the server fails, j goes without MPS. The GPU's lock is held
// for each question, since the daemon loses some of the questions that come at once (tried on 470 to 555), and not
// between them: jobs that start together wait side by side.
func (h *Hook) awaitServer(ctx context.Context, gpu int, j *Job) error {
	wait, cancel := context.WithTimeout(ctx, 2*h.MPS.Answer)
	defer cancel()
	for {
		ready, err := h.askServer(wait, gpu, j.UID)
		switch {
		case ready:
			return nil
		case wait.Err() != nil:
			return errInitialises
		case err != nil:
			return errors.Join(fmt.Errorf("start server of user %d: %w", j.UID, err), h.withoutServer(ctx, gpu, j))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// askServer is MPS.serves under the GPU's lock.
func (h *Hook) askServer(ctx context.Context, gpu int, uid uint32) (bool, error) {
	release, err := h.Dir.Lock(ctx, gpu)
	if err != nil {
		return false, err
	}
	defer release()
	return h.MPS.serves(ctx, gpu, uid)
}

// withoutServer takes MPS back from a job whose server has failed. The job has lost nothing: none of its processes was
// there yet.
func (h *Hook) withoutServer(ctx context.Context, gpu int, j *Job) error {
	return h.onGPU(ctx, gpu, func(jobs []*Job) error {
		j.MPS = false
		err := h.Dir.change([]*Job{j}, func(j *Job) bool {
			j.MPS, j.MPSFault, j.MPSFaultBy = false, time.Time{}, nil
			return true
		})
		err = errors.Join(err, h.handOut(gpu, j))
		if c, _ := card(h.Cards, gpu); c.Exclusive && len(h.othersThan(j, jobs)) > 0 {
			err = errors.Join(err, h.barred(j))
		}
		return err
	})
}

// barred marks a job beside others on a GPU that takes one process at a time, if it goes without MPS: it can't compute,
// for want of a server, and runs again as after a server's fault.
func (h *Hook) barred(j *Job) error {
	return h.Dir.change([]*Job{j}, func(j *Job) bool {
		if j.MPS || !j.MPSFault.IsZero() {
			return false
		}
		j.MPSFault = h.Now()
		return true
	})
}

// learn takes over which cards Slurm's numbers mean, where that is known: Slurm names MIG instances to its hooks, from
// 25.11 on all cards that it has found by itself, and the job's file has what its prolog knew.
func (h *Hook) learn(gpus []int, uuids []string) {
	if len(uuids) != len(gpus) {
		return
	}
	for k, uuid := range uuids {
		named := strings.HasPrefix(uuid, "GPU-") || strings.HasPrefix(uuid, "MIG-")
		for i := range h.Cards {
			if c := &h.Cards[i]; named && c.UUID == uuid {
				c.Index = gpus[k]
			} else if named && c.Index == gpus[k] {
				c.Index = unknown
			}
		}
	}
}

// named reports whether a card is named to jobs of shares by its UUID: beside MIG instances CUDA doesn't count as Slurm
// does.
func (h *Hook) named(c Card) bool { return c.UUID != "" && slices.ContainsFunc(h.Cards, Card.mig) }

// alone reports whether no process of a job can reach another GPU of the node than the job's.
func (h *Hook) alone() bool {
	return h.Constrains || len(slices.DeleteFunc(slices.Clone(h.Cards), func(c Card) bool { return c.Lost })) == 1
}

// share has the GPU's MPS daemon ready for job j beside the others that may share the GPU. The caller holds the GPU's
// lock. Where the server has failed, or takes no clients, j computes without MPS, which the task prolog sees to.
func (h *Hook) share(ctx context.Context, gpu int, j *Job, others []*Job) error {
	var errs []error
	if !h.MPS.multiuser(gpu) && slices.ContainsFunc(others, func(o *Job) bool { return o.MPS && o.UID != j.UID }) {
		// Slurm has put it next to another user's job by hand-written shares. It would wait for the
		// server until that job has ended; without the server, the two take turns.
		return fmt.Errorf("the MPS server serves another user; job %d goes without", j.JobID)
	}
	ready := false
	if len(others) > 0 {
		// A daemon that doesn't answer is Ensure's to deal with.
		s, asked, err := h.refresh(ctx, gpu, others)
		errs = append(errs, err)
		if !s.Takes() {
			return errors.Join(append(errs, goesWithout(s, j))...)
		}
		ready = asked == nil && s.PID != 0 && h.MPS.multiuser(gpu)
	}
	if !ready {
		if err := h.MPS.Ensure(ctx, gpu, j.UID, len(others) > 0, j.Sharer()); err != nil {
			return errors.Join(append(errs, err)...)
		}
		s, asked, err := h.refresh(ctx, gpu, others)
		errs = append(errs, asked, err)
		if len(others) > 0 && !s.Takes() {
			return errors.Join(append(errs, goesWithout(s, j))...)
		}
	}
	if h.MPS.Multiuser && !h.MPS.multiuser(gpu) && len(others) == 0 {
		errs = append(errs, fmt.Errorf("%w: only jobs of one user at a time share it", errOneUser))
	}
	j.MPS = true
	return errors.Join(append(errs, h.Dir.change([]*Job{j}, func(j *Job) bool { j.MPS = true; return true }))...)
}

// memory is the file system of /dev/shm in a root folder ("" = one's own), 0 = none is known.
func memory(root string) uint64 {
	info, err := os.Stat(filepath.Join(root, "/dev/shm"))
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Dev
}

func goesWithout(s Server, j *Job) error {
	why := "has as many clients as it serves"
	if !s.Fault.IsZero() {
		why = "has faulted and isn't renewed yet"
	}
	return fmt.Errorf("the MPS server %s; job %d goes without", why, j.JobID)
}

// refresh determines the state of the GPU's MPS server, stores it for all hooks, and marks the given jobs that lost
// their work with it. asked is the error of the query to the daemon, if it failed. The caller holds the GPU's lock.
func (h *Hook) refresh(ctx context.Context, gpu int, jobs []*Job) (s Server, asked, err error) {
	was := h.Dir.Server(gpu)
	s, lost, by := h.MPS.inspect(gpu, false)
	if len(by) > 0 && s.PID != 0 {
		s.Fault = h.Now() // until the daemon says otherwise, which it can from 550 on
	}
	if h.MPS.present(gpu) {
		c, _ := card(h.Cards, gpu)
		seen := s.PID
		s, asked = h.MPS.ask(ctx, gpu, s, c.Clients, h.Now())
		if seen != 0 && s.PID != seen {
			var last Server
			last, lost, by = h.MPS.inspect(gpu, true) // it ended in between
			s.Log, s.ServerLog = last.Log, last.ServerLog
		}
	}
	if lost || was.Fault.IsZero() && !s.Fault.IsZero() {
		err = h.Dir.victims(jobs, h.Now(), by)
	}
	if s != was {
		err = errors.Join(err, putJSON(h.Dir.gpu(gpu, serverFile), s, 0o644))
	}
	return s, asked, err
}

// afterwards is what is left to do on a GPU with the jobs that are there.
func (h *Hook) afterwards(ctx context.Context, gpu int, jobs []*Job) error {
	switch {
	case h.MPS == nil:
		return nil
	case len(jobs) == 0:
		return h.MPS.Release(ctx, gpu)
	case h.Dir.Server(gpu) == Server{}:
		return nil // a whole GPU's job
	}
	_, asked, err := h.refresh(ctx, gpu, jobs)
	return errors.Join(asked, err)
}

// mayShare reports whether other jobs can be on j's GPU at the same time, from what a prolog can see.
func (h *Hook) mayShare(j *Job) bool {
	return j.Sharer() || j.Percent == 0 && h.Shard
}

// onGPU runs do under a GPU's lock, with the jobs that are on it. Its error names the GPU.
func (h *Hook) onGPU(ctx context.Context, gpu int, do func(jobs []*Job) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("gpu %d: %w", gpu, err)
		}
	}()
	release, err := h.Dir.Lock(ctx, gpu)
	if err != nil {
		return err
	}
	defer release()
	// Read under the lock: other jobs come and go.
	jobs, err := List(h.Dir.Jobs())
	if err != nil && len(jobs) == 0 {
		return err
	}
	jobs, stale := h.closeStale(slices.DeleteFunc(jobs, func(j *Job) bool { return !slices.Contains(j.GPUs, gpu) }))
	return errors.Join(stale, do(jobs)) // an unreadable file doesn't matter if the rest can be read
}

// Epilog closes the job's file and ends the daemon after the last sharer.
func (h *Hook) Epilog(ctx context.Context, get func(string) string) error {
	id, err := number(get("SLURM_JOB_ID"), 1)
	if err != nil {
		return fmt.Errorf("%w: SLURM_JOB_ID %.32q", ErrBadEnv, get("SLURM_JOB_ID"))
	}
	// A job with a missing or damaged file has had its GPUs all the same.
	gpus, _ := indexes(get("SLURM_JOB_GPUS"))
	uid, _ := number(get("SLURM_JOB_UID"), 0)
	errs := []error{h.lost(id)}
	j, err := h.Dir.End(id, h.Now())
	errs = append(errs, err)
	if j != nil {
		gpus = j.GPUs
		h.learn(j.GPUs, j.UUIDs)
	}
	for _, g := range gpus {
		errs = append(errs, h.onGPU(ctx, g, func(jobs []*Job) error {
			var err error
			if j != nil && j.MPS && len(jobs) > 0 && h.MPS != nil {
				err = h.MPS.endClients(ctx, g, h.outlived(j), func(pid int) bool { return h.outlives(j, pid) })
			}
			err = errors.Join(err, h.afterwards(ctx, g, jobs))
			if j == nil && len(jobs) == 0 && h.MPS != nil {
				// Somebody may have emptied run_dir, and left the daemon to nobody.
				if n := h.MPS.killOf(g, uid, controlName, serverName); n > 0 {
					err = errors.Join(err,
						fmt.Errorf("the folders of its MPS daemon are gone, %d of the daemon's processes were killed", n))
				}
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

// lost marks a job that ends if its MPS server was lost: its file is moved before the GPU is looked at. It queries no
// daemon and waits for no lock: the record matters more.
func (h *Hook) lost(id int64) error {
	j, err := ReadJob(h.Dir.running(id))
	if h.MPS == nil || err != nil || len(j.GPUs) != 1 || !j.MPS {
		return nil
	}
	if _, lost, by := h.MPS.inspect(j.GPUs[0], false); lost {
		return h.Dir.victims([]*Job{j}, h.Now(), by)
	}
	return nil
}

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

// askTerms asks the controller for the terms of a job that is to share, and stores them with the job. If anything
// fails, the job starts without a memory limit, which would protect its neighbours.
func (h *Hook) askTerms(ctx context.Context, j *Job) error {
	if h.Controller == nil || h.MPS == nil || len(j.GPUs) != 1 || !h.mayShare(j) {
		return nil
	}
	c, _ := card(h.Cards, j.GPUs[0])
	if !c.MemLimits || c.MemMiB <= 0 {
		return nil // MPS can't hold a client to a part of the memory
	}
	terms, err := h.Controller.Terms(ctx, j.JobID, j.User)
	if err != nil {
		return fmt.Errorf("job %d goes without a memory limit: %w", j.JobID, err)
	}
	if terms.MiB >= int64(c.MemMiB) {
		terms.MiB = 0 // all there is
	}
	if terms == (Terms{}) {
		return nil
	}
	take := func(j *Job) bool {
		j.MemLimitMiB, j.ByHand = terms.MiB, terms.ByHand
		return true
	}
	take(j)
	return h.Dir.change([]*Job{j}, take)
}

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
