package prolog

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// A job with a /dev/shm of its own doesn't reach its GPU's MPS server, whose variables would end it: it goes without.
func TestAJobWithMemoryOfItsOwn(t *testing.T) {
	h := simulated(t)
	must.OK(t, h.Prolog(t.Context(), env()))
	var out bytes.Buffer
	must.OK(t, h.TaskProlog(&out, env()))
	must.Equal(t, strings.Contains(out.String(), "CUDA_MPS_PIPE_DIRECTORY"), true, out.String())
	var there, elsewhere unix.Stat_t
	must.OK(t, unix.Stat("/dev/shm", &there), unix.Stat("/proc", &elsewhere))
	given := kept[handout](h.Dir.task(7))
	must.Equal(t, given.Memory, there.Dev)
	given.Memory = elsewhere.Dev
	must.OK(t, putJSON(h.Dir.task(7), given, 0o644))
	out.Reset()
	says(t, h.TaskProlog(&out, env()), "/dev/shm of its own")
	must.Equal(t, strings.Contains(out.String(), "CUDA_"), false, out.String())
	must.OK(t, h.Epilog(t.Context(), env()))
}

// Where GPUs are shared by gres/shard a prolog can't see who shares: a job of a whole GPU must find it free of servers,
// in the mode EXCLUSIVE_PROCESS above all. The first sharer's client has its server come.
func TestNoServerForAJobOfAWholeGPU(t *testing.T) {
	h, b := node(t, "h200", 100, "--exclusive")
	whole := env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
	for _, h.Shard = range []bool{false, true} {
		// Nor may one be left of a sharer whose epilog was killed.
		must.OK(t, h.Prolog(t.Context(), env("SLURM_JOB_ID", "6")))
		must.Equal(t, len(h.MPS.running(0, serverName)), 1, "servers of a sharer")
		must.Get(h.Dir.End(6, time.Now()))(t)
		must.OK(t, h.Prolog(t.Context(), whole))
		until(t, "the server's end", func() bool { return h.MPS.running(0, serverName) == nil })
	}
	must.Equal(t, h.MPS.running(0, serverName), nil, "servers")
	app := exec.Command(b.sim, "run", "alexnet", "--duration-scale", "0.01")
	app.Env = []string{"GPUSIM_STATE=" + b.state}
	if said, err := app.CombinedOutput(); err != nil {
		t.Errorf("the job fails: %v: %s", err, said)
	}
	must.OK(t, h.Epilog(t.Context(), whole))
	// A sharer, whose shares the task prolog sees.
	h.Cards[0].Exclusive = true
	must.OK(t, h.Prolog(t.Context(), env("SLURM_JOB_ID", "8", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")))
	h.Shard = false // a percentage is what the task prolog of this test sees
	b.served(t, "8", true, "")
	must.OK(t, h.Epilog(t.Context(), env("SLURM_JOB_ID", "8")))
}

// One server serves one user: another one's job, which Slurm puts there by shares written by hand, computes without MPS
// instead of waiting for the others to end. On a GPU that takes one process at a time it can't: it is marked as one
// whose server failed, so that it runs again alone.
func TestAnotherUsersServer(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		h, b := node(t, "titanxp", 16)
		h.Cards[0].Exclusive = exclusive
		must.OK(t, h.Prolog(t.Context(), env()))
		b.run(t, "7", "--mem-mib", "50")
		until(t, "a client", func() bool { return h.clientsOf(t) == 1 })
		says(t, h.Prolog(t.Context(), env("SLURM_JOB_ID", "8", "SLURM_JOB_UID", "1001")), "another user; job 8 goes without")
		must.Equal(t, !read(t, h.Dir.running(8)).MPSFault.IsZero(), exclusive, "exclusive %v", exclusive)
		must.Equal(t, read(t, h.Dir.running(7)).MPSFault.IsZero(), true)
		b.uid = 1001
		b.served(t, "8", false, "no MPS server was ready")
		must.OK(t, h.Prolog(t.Context(), env("SLURM_JOB_ID", "9"))) // the first user's still go there
		must.Equal(t, read(t, h.Dir.running(9)).MPS, true)
	}
}

// There, too, a job with a /dev/shm of its own reaches no server, which would keep it from the GPU: the first one
// computes without, and the next is marked.
func TestMemoryOfItsOwnOnAnExclusiveGPU(t *testing.T) {
	h, b := node(t, "h200", 100, "--exclusive")
	h.Cards[0].Exclusive, h.HidesMemory = true, true
	says(t, h.Prolog(t.Context(), env()), "EXCLUSIVE_PROCESS, and jobs have a /dev/shm of their own")
	must.Equal(t, len(h.MPS.running(0, controlName, serverName)), 0, "processes of MPS")
	b.served(t, "7", false, "no MPS daemon")
	says(t, h.Prolog(t.Context(), env("SLURM_JOB_ID", "8")), "jobs that share it fail")
	must.Equal(t, read(t, h.Dir.running(7)).MPSFault.IsZero(), true)
	must.Equal(t, read(t, h.Dir.running(8)).MPSFault.IsZero(), false)
	must.OK(t, h.Epilog(t.Context(), env("SLURM_JOB_ID", "8")), h.Epilog(t.Context(), env()))
}

// Each sharer of an instance computes there, through a daemon of the instance's own, and so does one that is alone,
// without; Slurm has told it a number that CUDA doesn't count by. Nobody computes on the whole GPU's neighbour.
func TestSharersOfInstances(t *testing.T) {
	h, b := node(t, "a100", 100, "--instances", "1g.5gb,1g.5gb", "--uncut", "1")
	st := must.Get(gpusim.Open(b.state))(t)
	defer st.Close()
	_, parts := st.Parts()
	h.Cards = []Card{
		{Index: 0, Minor: 0, GI: 8, UUID: parts[0].Name(), MemMiB: 4864, MemLimits: true, Clients: 6},
		{Index: 1, Minor: 0, GI: 7, UUID: parts[1].Name(), MemMiB: 4864, MemLimits: true, Clients: 6},
		{Index: 2, NVMLIndex: 1, Minor: 1, UUID: st.Device(1).UUID(), MemMiB: 40960, MemLimits: true, Clients: 48},
	}
	h.MPS.Cards, h.Constrains = h.Cards, true
	t.Cleanup(func() { h.MPS.kill(1, controlName, serverName) })
	job := func(id, gpu, percent string) func(string) string {
		return env("SLURM_JOB_ID", id, "SLURM_JOB_GPUS", gpu, "CUDA_VISIBLE_DEVICES", "0",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent)
	}
	for _, c := range []struct {
		id, gpu, percent string
		mps              bool
		on               string
	}{
		{"7", "0", "60", true, parts[0].Name()},
		{"8", "0", "40", true, parts[0].Name()},
		{"9", "1", "60", true, parts[1].Name()},
		{"10", "1", "100", false, parts[1].Name()},     // alone by its shares; the hook knows no better
		{"11", "2", "100", false, st.Device(1).UUID()}, // of the whole one, which CUDA calls otherwise, too
	} {
		must.OK(t, h.Prolog(t.Context(), job(c.id, c.gpu, c.percent)))
		must.Equal(t, read(t, h.Dir.path("jobs", c.id+".json")).UUIDs[0], c.on)
		var out bytes.Buffer
		must.OK(t, h.TaskProlog(&out, job(c.id, c.gpu, c.percent)))
		must.Equal(t, strings.Count(out.String(), "export CUDA_VISIBLE_DEVICES="+c.on+"\n"), 1, out.String())
		must.Equal(t, strings.Count(out.String(), "CUDA_VISIBLE_DEVICES="), 1, out.String())
		cmd := exec.Command(b.sim, "run", "alexnet", "--duration-scale", "0.01")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: b.uid, Gid: b.uid}}
		cmd.Env = []string{"GPUSIM_STATE=" + b.state, "CUDA_MPS_PIPE_DIRECTORY=/nowhere"}
		for line := range strings.Lines(out.String()) {
			cmd.Env = append(cmd.Env, strings.TrimPrefix(strings.TrimSpace(line), "export "))
		}
		var report struct {
			Device string
			MPS    bool
		}
		must.OK(t, json.Unmarshal(must.Get(cmd.Output())(t), &report))
		must.Equal(t, report.Device, c.on, c.id)
		must.Equal(t, report.MPS, c.mps, c.id)
	}
	// A server that is lost on one instance is none of the other's matter.
	lost := h.Dir.Server(0)
	must.OK(t, syscall.Kill(lost.PID, syscall.SIGKILL))
	until(t, "the server's end", func() bool { return started("", lost.PID) != lost.Started })
	says(t, h.watch(t.Context()), "gpu 0: the MPS server was lost under jobs 7, 8")
	for id, victim := range map[string]bool{"7": true, "8": true, "9": false, "10": false, "11": false} {
		must.Equal(t, !read(t, h.Dir.path("jobs", id+".json")).MPSFault.IsZero(), victim, id)
	}
	for _, id := range []string{"7", "8", "9", "10", "11"} {
		must.OK(t, h.Epilog(t.Context(), env("SLURM_JOB_ID", id)))
	}
	must.Equal(t, len(must.Get(os.ReadDir(h.Dir.path("tasks")))(t)), 0, "what task prologs were told")
}

// A job on a card that isn't certain, or that the driver has lost, runs as Slurm started it: without MPS, without a
// record of another card's use, and told nothing of an instance that it isn't on.
func TestCardsWithoutMPS(t *testing.T) {
	for _, c := range []struct {
		cards []Card
		says  string
	}{
		{[]Card{{Index: unknown, UUID: "GPU-a"}, {Index: unknown, UUID: "GPU-b"}}, "gpu 0: Slurm's number can't be matched to a card"},
		{[]Card{{Index: unknown, UUID: "MIG-a"}, {Index: unknown, UUID: "MIG-b"}}, "gpu 0: Slurm's number can't be matched to a card"},
		// CUDA counts the GPUs that there are, so that a lost one's number is another's.
		{[]Card{{Index: 0, Lost: true}, {Index: 1, Minor: 1, UUID: "GPU-a"}}, "gpu 0: the driver has lost it"},
	} {
		h := simulated(t)
		h.Cards, h.MPS.Cards = c.cards, c.cards
		says(t, h.Prolog(t.Context(), env()), c.says)
		must.Equal(t, h.MPS.present(0), false, "%s: a daemon", c.says)
		must.Equal(t, read(t, h.Dir.running(7)).UUIDs, []string{""})
		var out bytes.Buffer
		says(t, h.TaskProlog(&out, env()), "no MPS daemon")
		must.Equal(t, strings.Contains(out.String(), "MIG-"), false, out.String())
		must.OK(t, h.Epilog(t.Context(), env()))
	}
}
