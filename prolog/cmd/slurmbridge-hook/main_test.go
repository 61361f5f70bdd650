package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain turns the test binary into the program: its inner process is a second
// start of the same file.
func TestMain(m *testing.M) {
	if os.Getenv("HOOK_TEST_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

type result struct {
	out, stderr string
	status      int
	took        time.Duration
}

// hook runs the program as Slurm does: no PATH, nothing but Slurm's variables.
func hook(t *testing.T, name string, args []string, env ...string) result {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = name
	cmd.Env = append([]string{"HOOK_TEST_MAIN=1"}, env...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	start := time.Now()
	err = cmd.Run()
	r := result{out.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(start)}
	if err != nil && r.status < 0 {
		t.Fatal(err)
	}
	return r
}

func job(kv ...string) []string {
	return append([]string{
		"SLURM_JOB_ID=7", "SLURM_JOB_UID=65534", "SLURM_JOB_USER=nobody", "SLURM_JOB_GPUS=0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
	}, kv...)
}

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-cuda-mps-control")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// Whatever is wrong with the node, a hook ends in exit 0 in time and says what it
// was.
func TestAlwaysExitZeroInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(bad, []byte("runn_dir: /x\nsharing: [1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unknown := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(unknown, []byte("runn_dir: /x\nsharing: both\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func() string { return "--run-dir=" + t.TempDir() }
	for _, c := range []struct {
		name, want string
		args       []string
		env        []string
	}{
		{"MPS hangs", "", []string{run(), "--mps-control", script(t, "exec sleep 60")}, job()},
		{"MPS hangs with its output open", "", []string{run(), "--mps-control", script(t, "sleep 3 & exec sleep 60")}, job()},
		{"MPS fails", "MPS daemon", []string{run(), "--mps-control", script(t, "echo no device >&2; exit 1")}, job()},
		{"no MPS", "no nvidia-cuda-mps-control", []string{run(), "--mps-control", "/does/not/exist"}, job()},
		{"settings on a disk that hangs", "hangs|not done after", []string{run(), "--settings", fifo}, job()},
		{"settings that are none", "yaml", []string{run(), "--settings", bad}, job()},
		{"unknown setting", `no setting "runn_dir"`, []string{run(), "--settings", unknown}, job()},
		{"senseless setting", `sharing can't be "both"`, []string{run(), "--settings", unknown}, job()},
		{"no folder to write to", "job 7", []string{"--run-dir", blocked + "/x"}, job()},
		{"hostile job number", "SLURM_JOB_ID", []string{run()}, job("SLURM_JOB_ID=../../etc/passwd")},
		{"no variables", "", []string{run()}, nil},
		{"unknown option", "unknown flag", []string{"--nonsense"}, job()},
		{"endless comment", "", []string{run(), "--mps-control", script(t, "exit 1")}, job("SLURM_JOB_COMMENT=" + strings.Repeat("a\n\xff", 30000))},
	} {
		for _, kind := range []string{"slurmbridge-prolog", "50-slurmbridge-epilog", "taskprolog"} {
			args := c.args
			if args[0] != "--nonsense" {
				deadline := "30s" // that a busy machine doesn't pass
				if strings.Contains(c.name, "hangs") {
					deadline = "400ms"
				}
				args = append(args, "--deadline", deadline)
			}
			r := hook(t, kind, args, c.env...)
			if r.status != 0 {
				t.Errorf("%s, %s: exit %d: %s", c.name, kind, r.status, r.stderr)
			}
			// Generous, so that a busy machine doesn't fail it; what hangs takes a minute.
			if r.took > 50*time.Second {
				t.Errorf("%s, %s: %v", c.name, kind, r.took)
			}
			says := func(want string) bool { return strings.Contains(r.stderr, want) }
			if kind == "slurmbridge-prolog" && !slices.ContainsFunc(strings.Split(c.want, "|"), says) {
				t.Errorf("%s: it says %q, want %q", c.name, r.stderr, c.want)
			}
			const frameworks = "export XLA_PYTHON_CLIENT_PREALLOCATE=false\nexport TF_FORCE_GPU_ALLOW_GROWTH=true\n"
			if out := strings.TrimPrefix(r.out, frameworks); out != "" || kind != "taskprolog" && r.out != "" {
				t.Errorf("%s, %s prints %q", c.name, kind, r.out)
			}
		}
	}
}

// What another has locked and doesn't let go of, and a daemon that takes calls and
// never answers, end no hook late.
func TestLockedAndNeverAnswered(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	for name, hang := range map[string]func(t *testing.T, run string){
		"the job files": func(t *testing.T, run string) { lock(t, filepath.Join(run, "jobs")) },
		"the GPU":       func(t *testing.T, run string) { lock(t, filepath.Join(run, "mps", "gpu0")) },
		"a pipe for a job's file": func(t *testing.T, run string) {
			if err := syscall.Mkfifo(filepath.Join(run, "jobs", "7.json"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a pipe for the server's state": func(t *testing.T, run string) {
			if err := syscall.Mkfifo(filepath.Join(run, "mps", "gpu0", "server.json"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a daemon that never answers": func(t *testing.T, run string) {
			// What the real control program does: it connects, asks and waits.
			for _, name := range []string{"control", "control_privileged"} {
				l, err := net.Listen("unix", filepath.Join(run, "mps", "gpu0", "pipe", name))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
			}
		},
	} {
		for _, kind := range []string{"prolog", "epilog", "taskprolog"} {
			run, err := os.MkdirTemp("", "sbl") // sockets need a short path
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(run)
			for _, sub := range []string{"jobs", "ended", "mps/gpu0/pipe"} {
				if err := os.MkdirAll(filepath.Join(run, sub), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			hang(t, run)
			r := hook(t, kind, []string{"--run-dir", run, "--mps-control", script(t, "exec sleep 60"), "--deadline", "400ms"}, job()...)
			if r.status != 0 || r.took > 50*time.Second {
				t.Errorf("%s, %s: exit %d after %v: %s", name, kind, r.status, r.took, r.stderr)
			}
		}
	}
}

// lock takes a folder's lock, and that of the GPU whose folder it is.
func lock(t *testing.T, folder string) {
	t.Helper()
	for _, open := range []func() (*os.File, error){
		func() (*os.File, error) { return os.Open(folder) },
		func() (*os.File, error) {
			return os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
		},
	} {
		f, err := open()
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
}

// A process that can't be ended, as one that waits for a dead disk, is left
// behind: stopped, it takes no notice of anything but SIGKILL, which a real one
// would not even take.
func TestWhatCannotBeEndedIsLeftBehind(t *testing.T) {
	run := t.TempDir()
	control := script(t, fmt.Sprintf("echo $PPID > %s/pid; kill -STOP $PPID; exec sleep 60", run))
	r := hook(t, "prolog", []string{"--run-dir", run, "--mps-control", control, "--deadline", "300ms"}, job()...)
	if r.status != 0 || r.took > 50*time.Second || !strings.Contains(r.stderr, "left behind") {
		t.Errorf("exit %d after %v: %s", r.status, r.took, r.stderr)
	}
	if _, err := os.Stat(filepath.Join(run, "jobs", "7.json")); err != nil {
		t.Errorf("the job's file: %v; MPS must not cost the record", err)
	}
}

func TestNotAHook(t *testing.T) {
	if r := hook(t, "slurmbridge-hook", []string{"nonsense"}); r.status != 2 || !strings.Contains(r.stderr, "nonsense") {
		t.Errorf("%+v", r)
	}
	if r := hook(t, "slurmbridge-hook", []string{"--help"}); r.status != 0 || !strings.Contains(r.out, "TaskProlog") {
		t.Errorf("%+v", r)
	}
}

// The scripts start the program for jobs that it concerns, and for no others: a job without a
// GPU pays for a shell.
func TestScriptsCallTheProgramForJobsWithGPUs(t *testing.T) {
	for _, c := range []struct {
		script string
		files  string // of the folder of jobs
		env    []string
		calls  int
	}{
		{"prolog", "", nil, 0},
		{"prolog", "", []string{"SLURM_JOB_GPUS=0"}, 1},
		{"prolog", "", []string{"SLURM_STEP_GPUS=1"}, 1},
		{"taskprolog", "", nil, 0},
		{"taskprolog", "", []string{"SLURM_JOB_GPUS=0"}, 0},
		{"taskprolog", "", []string{"SLURM_JOB_GPUS=0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}, 1},
		{"taskprolog", "", []string{"SLURM_JOB_GPUS=0", "SLURM_SHARDS_ON_NODE=50"}, 1},
		{"epilog", "8.json", nil, 0},
		{"epilog", "8.json", []string{"SLURM_JOB_GPUS=0"}, 1},
		{"epilog", "8.json", []string{"SLURM_STEP_GPUS=0"}, 1},
		{"epilog", "7.json", nil, 1}, // slurmctld no longer knows it
		{"epilog", "", nil, 1},       // the folder may be another one
	} {
		dir := t.TempDir()
		if c.files != "" {
			err := errors.Join(os.Mkdir(filepath.Join(dir, "jobs"), 0o755), os.WriteFile(filepath.Join(dir, "jobs", c.files), nil, 0o600))
			if err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile("../../../etc/hooks/" + c.script)
		if err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "hook")
		if err := os.WriteFile(program, []byte("#!/bin/sh\necho $1 >>"+dir+"/calls\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-eu", "-c", strings.NewReplacer(
			"/usr/sbin/slurmbridge-hook", program, "/run/slurmbridge/jobs", filepath.Join(dir, "jobs")).Replace(string(text)))
		cmd.Env = append([]string{"SLURM_JOB_ID=7"}, c.env...)
		says := "" // what Slurm reads of a task prolog
		if c.script == "taskprolog" {
			says = "unset SLURM_SCRIPT_CONTEXT\n"
		}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != says {
			t.Errorf("%s with %v: %v, %q", c.script, c.env, err, out)
		}
		calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
		if got := strings.Count(string(calls), c.script+"\n"); got != c.calls {
			t.Errorf("%s with %v calls the program %d times", c.script, c.env, got)
		}
	}
}

// A job that a sharer submits inherits what was set for the sharer's GPU: that is unset. A step of the sharer keeps it.
func TestInheritedEnvironmentIsUnset(t *testing.T) {
	text, err := os.ReadFile("../../../etc/hooks/taskprolog")
	if err != nil {
		t.Fatal(err)
	}
	says := func(job string) string {
		cmd := exec.Command("/bin/sh", "-eu", "-c", string(text))
		cmd.Env = []string{"SLURM_JOB_ID=7", "SLURMBRIDGE_MPS_JOB=" + job, "CUDA_MPS_PIPE_DIRECTORY=/run/slurmbridge/mps/gpu0/pipe"}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	const always = "unset SLURM_SCRIPT_CONTEXT\n"
	if got, want := says("6"), always+"unset CUDA_MPS_PIPE_DIRECTORY\nunset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\nunset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\nunset SLURMBRIDGE_MPS_JOB\n"; got != want {
		t.Errorf("of another job: %q", got)
	}
	for _, job := range []string{"7", ""} {
		if got := says(job); got != always {
			t.Errorf("of job %q: %q", job, got)
		}
	}
}

// The help names the hooks as the sample slurm.conf does, and each is there.
func TestHelpNamesTheHooks(t *testing.T) {
	const etc = "../../../etc/"
	sample, err := os.ReadFile(etc + "slurm.conf.slurmbridge")
	if err != nil {
		t.Fatal(err)
	}
	help := hook(t, "slurmbridge-hook", []string{"--help"}).out
	n := 0
	for line := range strings.Lines(help) {
		key, path, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || !strings.HasSuffix(key, "log") {
			continue
		}
		n++
		if !strings.Contains(string(sample), "\n"+key+"="+path+"\n") {
			t.Errorf("the sample slurm.conf has no line %s=%s", key, path)
		}
		body, err := os.ReadFile(etc + "hooks/" + filepath.Base(path))
		if err != nil || !strings.Contains(string(body), "slurmbridge-hook "+filepath.Base(path)+" && break\n") {
			t.Errorf("%s calls no hook: %v", path, err)
		}
	}
	if n != 3 {
		t.Errorf("%d hooks in\n%s", n, help)
	}
}
