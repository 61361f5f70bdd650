package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// A process that has broken its MPS server is long gone when a hook reads so in the server's log. Jobs 1 and 2 share a
// GPU, and the records say whose process it was.
func TestWhoseFaultItWas(t *testing.T) {
	for name, c := range map[string]struct {
		by        []int // the processes in the log
		endsFirst bool  // job 2, and its record is closed before job 1's file names a process
		later     time.Duration
		reused    bool // process 22's number is one of job 1's meanwhile
		restart   bool // of the agent, once the file names the process
		want      []int64
	}{
		"the neighbour's": {by: []int{22}, want: []int64{2}},
		"its own":         {by: []int{11}, want: []int64{1}},
		"both":            {by: []int{22, 11}, want: []int64{2, 1}},
		"the neighbour's, whose record is closed": {by: []int{22}, endsFirst: true, want: []int64{2}},
		"the agent restarted":                     {by: []int{22}, restart: true, want: []int64{2}},
		"the number is another process's by now":  {by: []int{22}, reused: true, want: []int64{1}},
		"one of two isn't known":                  {by: []int{22, 33}},
		"a long time ago":                         {by: []int{22}, endsFirst: true, later: time.Hour},
		"the log names none":                      {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.proc(map[int]int64{11: 1, 22: 2})
			card := b.steady()
			on := []nvml.Process{{PID: 11, MemMiB: 100}, {PID: 22, MemMiB: 100}}
			card.procs = func() ([]nvml.Process, error) { return on, nil }
			b.gpus[0].card = card
			b.begin(1, 0, 0)
			b.begin(2, 0, 0)
			b.scan()
			b.until(b.now.Add(5 * time.Second))
			if on = on[:1]; c.endsFirst {
				b.end(2)
				b.closed(2)
			}
			if c.reused {
				b.procAt(t, b.Proc, map[int]int64{22: 1})
				on = on[:2]
			}
			b.until(b.now.Add(5*time.Second + c.later))
			b.rewrite(1, func(j *prolog.Job) { j.MPSFault, j.MPSFaultBy = b.now, c.by })
			b.scan()
			if c.restart {
				b.keepState()
				b.crash(new(bytes.Buffer))
			}
			b.end(1)
			must.Equal(t, b.closed(1).MPSFaultBy, c.want)
		})
	}
}

// The chain on a simulated GPU: two clients of one MPS server, one of which faults, the hooks that read it in the
// server's log, and both jobs' records.
func TestAClientFaultsUnderTheAgent(t *testing.T) {
	lib, gpusim := simulated(t, "20", "--model", "a100", "--driver", "550")
	run := must.Get(os.MkdirTemp("", "sbl"))(t) // sockets need a short path
	t.Cleanup(func() { os.RemoveAll(run) })
	records := new(kept)
	a := &Agent{
		Dir: prolog.Dir(run), Devices: lib.Devices(), Node: "n1", Period: time.Second, Keep: records.keep, Now: time.Now,
		Proc: t.TempDir(), Log: slog.New(slog.DiscardHandler),
	}
	must.OK(t, a.Start())
	cards := must.Get(a.Dir.Cards(""))(t)
	hook := &prolog.Hook{Dir: a.Dir, Cards: cards, Now: time.Now, MPS: &prolog.MPS{
		Dir: a.Dir, Control: filepath.Join(filepath.Dir(gpusim), "nvidia-cuda-mps-control"), Cards: cards,
		Env: []string{"GPUSIM_STATE=" + os.Getenv("GPUSIM_STATE")},
	}}
	env := func(job int64) func(string) string {
		return func(key string) string {
			return map[string]string{
				"SLURM_JOB_ID": fmt.Sprint(job), "SLURM_JOB_UID": "0", "SLURM_JOB_USER": "root", "SLURM_JOB_GPUS": "0",
				"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
			}[key]
		}
	}
	clients := map[int64]*exec.Cmd{}
	for job, more := range map[int64][]string{7: {"--duration-scale", "1000"}, 8: {"--fault-at", "60"}} {
		must.OK(t, hook.Prolog(t.Context(), env(job)))
		var vars bytes.Buffer
		must.OK(t, hook.TaskProlog(&vars, env(job)))
		cmd := exec.Command(gpusim, append([]string{"run", "hoomd"}, more...)...)
		cmd.Env = append(os.Environ(), strings.Fields(strings.ReplaceAll(vars.String(), "export ", ""))...)
		must.OK(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		clients[job] = cmd
		(&bench{Agent: a, t: t}).procAt(t, a.Proc, map[int]int64{cmd.Process.Pid: job})
	}
	a.scan()
	slurmtest.Wait(t.Context(), time.Minute, func() bool {
		a.sample()
		return len(a.gpus[0].processes) == 2
	})
	for job, cmd := range clients {
		if cmd.Wait() == nil {
			t.Errorf("the client of job %d ended well", job)
		}
	}
	for _, job := range []int64{8, 7} {
		_ = hook.Epilog(t.Context(), env(job)) // it says that the server was lost
		a.scan()
	}
	must.Equal(t, len(records.recs), 2, "records")
	for _, r := range records.recs {
		if r.MPSFault.IsZero() {
			t.Errorf("job %d is no victim", r.JobID)
		}
		must.Equal(t, r.MPSFaultBy, []int64{8}, "job %d", r.JobID)
		must.OK(t, r.Validate())
	}
}
