package prolog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// fakeProc makes a /proc with the steps of some jobs.
func fakeProc(t *testing.T, steps ...string) string {
	t.Helper()
	proc := t.TempDir()
	for i, s := range steps {
		dir, exe := filepath.Join(proc, strconv.Itoa(100+i)), "/usr/sbin/slurmstepd"
		if name, is := strings.CutPrefix(s, "pretends "); is {
			s, exe = name, "/usr/bin/python3"
		}
		if name, is := strings.CutPrefix(s, "debian's "); is {
			s, exe = name, "/usr/sbin/slurmstepd-wlm"
		}
		must.OK(t, os.MkdirAll(dir, 0o755), os.Symlink(exe, filepath.Join(dir, "exe")))
		if s == "a user's" {
			// Its memory is locked: whoever reads the command line waits.
			must.OK(t, syscall.Mkfifo(filepath.Join(dir, "cmdline"), 0o444), os.Chown(dir, 1000, 1000))
			continue
		}
		must.OK(t, os.WriteFile(filepath.Join(dir, "cmdline"), []byte(s+"\x00"), 0o444))
	}
	return proc
}

// What ended without an epilog is closed by the next hook on its GPU, as soon as it is certain and no sooner.
func TestJobsWithoutAnEpilog(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: another user's process")
	}
	now := time.Now().Round(time.Second)
	job := func(id int64, percent int, age time.Duration) *JobFile {
		return &JobFile{JobID: id, GPUs: []int{0}, Percent: percent, Start: now.Add(-age)}
	}
	for _, c := range []struct {
		name string
		jobs []*JobFile
		left string
	}{
		{"a step runs", []*JobFile{job(5, 30, time.Hour), job(6, 30, time.Hour)}, "5 6 9"},
		{"a step runs, of Debian's package", []*JobFile{job(1, 30, 25*time.Hour), job(8, 30, 25*time.Hour)}, "8 9"},
		{"no step any more", []*JobFile{job(1, 30, 25*time.Hour), job(6, 30, time.Hour)}, "6 9"},
		{"salloc, between two steps", []*JobFile{job(1, 30, 2*time.Hour)}, "1 9"},
		{"a day without a step", []*JobFile{job(1, 30, 25*time.Hour)}, "9"},
		{"Slurm would have a process there", []*JobFile{job(101, 30, 11*time.Minute), job(6, 30, time.Hour)}, "6 9"},
		{"Slurm may start its process yet", []*JobFile{job(101, 30, 9*time.Minute)}, "9 101"},
		{"its share is another's by now", []*JobFile{job(1, 60, 2*time.Minute), job(2, 60, 30*time.Second)}, "2 9"},
		{"a whole GPU's", []*JobFile{job(1, 0, 2*time.Minute)}, "9"},
		{"another user's step of that name", []*JobFile{job(7, 60, 2*time.Minute), job(2, 60, 0)}, "2 9"},
	} {
		h := &Hook{Dir: Dir(t.TempDir()), Now: func() time.Time { return now }, MPS: nil}
		h.Contains = strings.HasPrefix(c.name, "Slurm")
		h.Proc = fakeProc(t, "pretends slurmstepd: [1.batch]", "slurmstepd: [5.batch]", "slurmstepd: [6.extern] ",
			"mine slurmstepd: [7.0]", "a user's", "debian's slurmstepd: [8.batch]")
		for _, j := range c.jobs {
			must.OK(t, h.Dir.Begin(j))
		}
		err := h.Prolog(context.Background(), env("SLURM_JOB_ID", "9", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30"))
		running, _ := List(h.Dir.Jobs())
		var left []string
		for _, j := range running {
			left = append(left, strconv.FormatInt(j.JobID, 10))
		}
		must.Equal(t, strings.Join(left, " "), c.left, c.name)
		ended, _ := List(h.Dir.Ended())
		for _, j := range ended {
			says(t, err, fmt.Sprintf("job %d ended without an epilog", j.JobID))
			if j.End.Before(j.Start) {
				t.Errorf("%s: %+v", c.name, j)
			}
		}
		must.Equal(t, len(ended)+len(running), len(c.jobs)+1, "%s: %d ended, %d run", c.name, len(ended), len(running))
	}
}

// A prolog that was killed and is called again, and a requeued job whose first run had
// no epilog: no run is lost, none is counted twice.
func TestPrologAgain(t *testing.T) {
	began, seconds := time.Now().Round(time.Second), atomic.Int64{}
	h := &Hook{
		Dir: Dir(t.TempDir()),
		Now: func() time.Time { return began.Add(time.Duration(seconds.Add(1)) * time.Second) },
	}
	ctx := context.Background()
	whole := []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""}
	must.OK(t, h.Prolog(ctx, env(whole...)))
	first := read(t, h.Dir.running(7)).Start
	must.OK(t, h.Prolog(ctx, env(whole...)))
	if j := read(t, h.Dir.running(7)); !j.Start.Equal(first) {
		t.Errorf("it began at %v, and then at %v", first, j.Start)
	}
	must.OK(t, h.Prolog(ctx, env(append(whole, "SLURM_JOB_RESTART_COUNT", "1")...)))
	if j := read(t, h.Dir.path("ended", "7-0.json")); j.End.Before(first) {
		t.Errorf("%+v", j)
	}
	if j := read(t, h.Dir.running(7)); j.Restart != 1 || !j.Start.After(first) {
		t.Errorf("%+v", j)
	}
	atOnce(8, func(int) { // epilogs called twice
		says(t, h.Epilog(ctx, env("SLURM_JOB_RESTART_COUNT", "1")), "")
	})
	ended := must.Get(List(h.Dir.Ended()))(t)
	must.Equal(t, len(ended), 2)
	must.OK(t, h.Dir.Forget(ended[0]), h.Dir.Forget(ended[1]), h.Dir.Forget(ended[1]))
	must.Equal(t, len(must.Get(List(h.Dir.Ended()))(t)), 0)
}

// Nobody but root, or the agent's own user, can make the agent believe in a job.
func TestForgedJobFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: another user's file")
	}
	good := []byte(`{"job_id":7,"uid":0,"user":"root","gpus":[0]}`)
	for name, forge := range map[string]func(path string) error{
		"a user's file": func(p string) error { return errors.Join(os.WriteFile(p, good, 0o600), os.Chown(p, 1000, 1000)) },
		"writable by all": func(p string) error {
			return errors.Join(os.WriteFile(p, good, 0o600), os.Chmod(p, 0o602))
		},
		"writable by a group": func(p string) error {
			return errors.Join(os.WriteFile(p, good, 0o600), os.Chmod(p, 0o620))
		},
		"a link": func(p string) error {
			return errors.Join(os.WriteFile(p+".target", good, 0o600), os.Symlink(p+".target", p))
		},
		"a link to nothing": func(p string) error { return os.Symlink("/does/not/exist", p) },
		"a pipe":            func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"a folder":          func(p string) error { return os.Mkdir(p, 0o755) },
		"a device":          func(p string) error { return syscall.Mknod(p, syscall.S_IFCHR|0o600, 1<<8|5) },
		"no end":            func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 1<<40)) },
		"not a job":         func(p string) error { return os.WriteFile(p, []byte(`{"job_id":-1}`), 0o600) },
		"garbage":           func(p string) error { return os.WriteFile(p, []byte("\x00\xff{"), 0o600) },
	} {
		dir := Dir(t.TempDir())
		must.OK(t, dir.Make())
		must.OK(t, forge(dir.running(7)))
		must.OK(t, dir.Begin(&JobFile{JobID: 8}))
		jobs, err := List(dir.Jobs()) // it waits for none of them
		if len(jobs) != 1 || jobs[0].JobID != 8 || err == nil {
			t.Errorf("%s: %d jobs, %v", name, len(jobs), err)
		}
	}
	dir := Dir(t.TempDir())
	must.OK(t, dir.Begin(&JobFile{JobID: 7}))
	must.Equal(t, read(t, dir.running(7)).JobID, 7)
	// A task prolog, as the job's user, believes root's list of GPUs and no other.
	must.OK(t, dir.WriteCards([]Card{{UUID: "GPU-a"}}))
	must.OK(t, os.Chown(dir.path(cardsFile), 1000, 1000))
	if cards, err := dir.Cards(t.TempDir()); err == nil || cards != nil {
		t.Errorf("a forged list of GPUs: %v %v", cards, err)
	}
}

// Under RunInJob a hook is in its job's control groups, and what it starts would end
// with the job; otherwise it is in slurmd's, which MemSpecLimit and CoreSpecCount make small.
func TestLeaveSlurm(t *testing.T) {
	for name, c := range map[string]struct{ groups, procs string }{
		"version 2":     {"0::/system.slice/slurmstepd.scope/job_12/step_extern/slurm\n", "slurmbridge"},
		"version 1":     {"4:memory:/slurm/uid_1000/job_12/step_extern\n9:name=systemd:/x\n", "memory/slurmbridge"},
		"both":          {"0::/system.slice/slurmstepd.scope/job_12\n", "unified/slurmbridge"},
		"by SLUID":      {"0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_extern/slurm\n", "unified/slurmbridge"},
		"slurmd":        {"0::/system.slice/slurmd.service\n", "slurmbridge"},
		"specialised":   {"0::/system.slice/n1_slurmstepd.scope/system\n", "slurmbridge"},
		"and version 1": {"4:memory:/slurm_n1/system\n", "memory/slurmbridge"},
		"elsewhere":     {"0::/system.slice/sshd.service\n5:memory:/system\n", ""},
		"a job by name": {"0::/user.slice/my_job_12\n", ""},
	} {
		root := t.TempDir()
		must.OK(t, os.MkdirAll(filepath.Join(root, "proc/self"), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(root, "proc/self/cgroup"), []byte(c.groups), 0o600))
		for _, mount := range []string{"memory", "systemd", "unified"} {
			must.OK(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup", mount), 0o755))
		}
		if name == "version 2" || name == "slurmd" || name == "specialised" {
			must.OK(t, os.WriteFile(filepath.Join(root, "sys/fs/cgroup/cgroup.procs"), nil, 0o600))
		}
		for range 2 {
			must.OK(t, LeaveSlurm(root))
		}
		found, _ := filepath.Glob(filepath.Join(root, "sys/fs/cgroup/*/*"))
		more, _ := filepath.Glob(filepath.Join(root, "sys/fs/cgroup/*/*/cgroup.procs"))
		var procs []string
		for _, f := range append(found, more...) {
			if filepath.Base(f) == "cgroup.procs" {
				rel, _ := filepath.Rel(filepath.Join(root, "sys/fs/cgroup"), filepath.Dir(f))
				procs = append(procs, rel)
			}
		}
		must.Equal(t, strings.Join(procs, " "), c.procs, "processes that got a signal: %s", name)
	}
	must.OK(t, LeaveSlurm(t.TempDir()))
}

// Task prologs are told nothing of a job that has ended, or of its last run: not by a prolog that was left behind, nor
// where the last run had no epilog.
func TestNothingIsToldOfAJobThatHasEnded(t *testing.T) {
	d := Dir(t.TempDir())
	first := &JobFile{JobID: 7, Start: time.Now()}
	there := func() bool { _, err := os.Stat(d.task(7)); return err == nil }
	must.OK(t, d.Begin(first), d.tell(first, handout{GPU: 1}))
	must.Equal(t, there(), true, "while it runs")
	must.Get(d.End(7, time.Now()))(t)
	must.OK(t, d.tell(first, handout{GPU: 1}))
	must.Equal(t, there(), false, "after its end")
	second := &JobFile{JobID: 7, Restart: 1, Start: time.Now()}
	must.OK(t, d.Begin(second), d.tell(first, handout{GPU: 1}))
	must.Equal(t, there(), false, "by its first run's prolog")
	must.OK(t, d.tell(second, handout{GPU: 2}))
	must.Equal(t, there(), true, "by its own")
	must.OK(t, d.Begin(&JobFile{JobID: 7, Restart: 2, Start: time.Now()}))
	must.Equal(t, there(), false, "of its second run, which had no epilog, to its third")
}
