package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// share is a script that says whether its GPU's MPS daemon is there for it.
const share = `[ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ] && echo served; sleep 1; [ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ] && echo still`

// both runs two sharers, the second ending a second after the first, and checks that
// each was served to its end and the node is clean.
func (c *cards) both(args ...string) {
	c.t.Helper()
	var ids []string
	for range 2 {
		ids = append(ids, must.Get(c.Submit(c.t.Context(), ann, share+fmt.Sprintf("\nsleep %d\n", len(ids)),
			append([]string{"--gres=mps:50"}, args...)...))(c.t))
	}
	for _, id := range ids {
		c.reach("COMPLETED", id)
		text := must.Get(os.ReadFile(c.Path("out", id+".out")))(c.t)
		must.Equal(c.t, strings.Fields(string(text)), []string{"served", "still"}, "what job %s says", id)
	}
	c.until("files of both that they have ended", func() bool { return len(c.ended()) == 2 })
	for _, f := range c.ended() {
		_ = os.Remove(f)
	}
	c.clean()
}

// ended are the files of the jobs that have ended: no agent takes them.
func (c *cards) ended() []string {
	files := must.Get(filepath.Glob(c.Path("node", "ended", "*.json")))(c.t)
	return files
}

// The hooks work whenever and wherever Slurm calls them.
func TestPrologFlags(t *testing.T) {
	t.Parallel()
	flags := []string{"Alloc", "Contain", "Alloc,Serial", "X11", "Alloc,NoHold", "RunInJob"}
	for _, f := range flags {
		t.Run(f, func(t *testing.T) {
			t.Parallel()
			extra := []string{"PrologFlags=" + f}
			if f == "RunInJob" && os.Getenv("SLURMBRIDGE_TEST_ROOT") == "" {
				t.Skip("Slurm 24.05 or later has it: make test-compat")
			}
			if f == "X11" || f == "RunInJob" {
				extra = append(extra, "ProctrackType=proctrack/pgid") // not with linuxproc
			}
			s := newCards(t, cluster.Setup{Adjust: func(o *slurmtest.Options) { o.Extra = extra }})
			s.both()
		})
	}
}

// A job's processes are found: by its step, whatever the step's program is called here, and
// where Slurm names control groups by SLUID, by the SLUID that its prolog was given.
func TestProcessesAreFound(t *testing.T) {
	slurmtest.OfOneRelease(t)
	t.Parallel()
	s := newCards(t, cluster.Setup{})
	id := must.Get(s.Submit(t.Context(), ann, "echo $$ >"+s.Path("out", "pid")+"\nsleep 1000", "--gres=mps:50"))(t)
	var pid int
	s.until("the job runs", func() bool {
		text, _ := os.ReadFile(s.Path("out", "pid"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0
	})
	must.Equal(t, strconv.FormatInt(stepAbove(pid), 10), id, "the job of process %d", pid)
	f := s.job(id)
	must.Equal(t, must.Get(prolog.ReadJob(s.Path("node", "jobs", id+".json")))(t).SLUID, f["SLUID"],
		"SLUID of the job's file")
	if r := text.ParseRelease(s.Release); !r.Before(text.Release{25, 11, 0}) && f["SLUID"] == "" {
		t.Errorf("%s has no SLUID: %v", s.Release, f)
	}
}

// stepAbove is the job of the nearest step that a process descends from, 0 = none.
func stepAbove(pid int) int64 {
	for pid > 1 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) < 2 {
			return 0
		}
		if pid, err = strconv.Atoi(f[1]); err != nil {
			return 0
		}
		if job := prolog.StepOf(fmt.Sprintf("/proc/%d", pid)); job != 0 {
			return job
		}
	}
	return 0
}

// The hooks are good neighbours in a folder of hooks: whatever the others print, and
// wherever in their order they stand.
func TestHooksAmongOthers(t *testing.T) {
	t.Parallel()
	rubbish := "#!/bin/sh\nhead -c 200000 /dev/urandom\necho 'export CUDA_MPS_PIPE_DIRECTORY=/nowhere'\nhead -c 2000 " +
		"/dev/urandom >&2\nexit 0\n"
	var own string // the epilog that this test may break
	folders := func(c *slurmtest.Cluster) error {
		for name, hook := range map[string]*string{"prolog.d": &c.Options.Prolog, "epilog.d": &c.Options.Epilog} {
			folder := c.Path(name)
			if err := os.Mkdir(folder, 0o755); err != nil {
				return err
			}
			for _, before := range []string{"10-site", "90-site"} {
				if err := os.WriteFile(filepath.Join(folder, before), []byte(rubbish), 0o755); err != nil {
					return err
				}
			}
			if err := os.Symlink(*hook, filepath.Join(folder, "50-slurmbridge")); err != nil {
				return err
			}
			*hook = folder + "/*"
		}
		own = c.Path("prolog.d", "90-site")
		return nil
	}
	s := newCards(t, cluster.Setup{Adjust: func(o *slurmtest.Options) {
		prepare := o.Prepare
		o.Extra, o.Prepare = []string{"JobRequeue=1"},
			func(c *slurmtest.Cluster) error { return errors.Join(prepare(c), folders(c)) }
	}})
	s.both()
	// Another's prolog fails: Slurm drains the node and puts the job back, and our part of it is undone.
	must.OK(t, os.WriteFile(own, []byte("#!/bin/sh\nexit 1\n"), 0o755))
	id := must.Get(s.Submit(t.Context(), ann, "true\n", "--gres=mps:50", "--requeue"))(t)
	s.until("the node whose prolog failed is drained",
		func() bool { return strings.Contains(s.says("sinfo", "-h", "-N", "-o", "%T"), "drain") })
	s.until("nothing of job "+id+" is left", func() bool {
		running, _ := filepath.Glob(s.Path("node", "jobs", "*.json"))
		return len(running) == 0 && len(must.Get(s.Processes(controlProgram, serverProgram))(t)) == 0
	})
	must.OK(t, os.WriteFile(own, []byte(rubbish), 0o755))
	for _, f := range s.ended() {
		_ = os.Remove(f)
	}
	s.scontrol("update", "NodeName=n1", "State=RESUME")
	s.cancel(id)
	s.both()
}
