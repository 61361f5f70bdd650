package main

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// TestMain turns the test binary into the program, whose inner process is a second start of the same file. It takes
// twice as long to start as the program that is built, which the hooks of long tests run where it is.
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
func hook(t *testing.T, args []string, env ...string) result {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	if dir := os.Getenv("SLURMBRIDGE_BUILD"); dir != "" && !testing.Short() {
		exe = filepath.Join(dir, "slurmbridge-hook")
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append([]string{"HOOK_TEST_MAIN=1"}, env...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	start := time.Now()
	err := cmd.Run()
	r := result{out.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(start)}
	if err != nil && r.status < 0 {
		t.Fatal(err)
	}
	return r
}

func job(kv ...string) []string {
	return append([]string{
		"SLURM_JOB_ID=7", "SLURM_JOB_UID=65534", "SLURM_JOB_USER=nobody", "SLURM_JOB_GPUS=0",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
	}, kv...)
}

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-cuda-mps-control")
	server := filepath.Join(filepath.Dir(path), "nvidia-cuda-mps-server")
	must.OK(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755), os.WriteFile(server, nil, 0o755))
	return path
}

// noMPS is a control program that fails at once.
const noMPS = "echo no device >&2; exit 1"

// A hook whose work was killed says so by its status, and does all of it when it is called again.
func TestWorkThatIsKilledIsStillDue(t *testing.T) {
	run := t.TempDir()
	mark := filepath.Join(run, "mark")
	args := []string{
		"prolog", "--run-dir", run, "--deadline", "30s", "--mps-control",
		script(t, "[ -e "+mark+" ] || { >"+mark+"; kill -KILL $PPID; }; "+noMPS),
	}
	first := hook(t, args, job()...)
	must.Equal(t, first.status, killed, "%s", first.stderr)
	again := hook(t, args, job()...)
	must.Equal(t, again.status, 0, "%s", again.stderr)
	_, err := os.Stat(filepath.Join(run, "jobs/7.json"))
	must.OK(t, err)
}

// Whatever is wrong with the node or the job, a hook ends in exit 0 in time, and says what it was.
func TestAlwaysExitZeroInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	settings := filepath.Join(t.TempDir(), "node.yaml")
	must.OK(t, os.WriteFile(settings, []byte("runn_dir: /x\nsharing: both\n"), 0o600))
	pipe := func(names ...string) func(t *testing.T, run string) {
		return func(t *testing.T, run string) {
			t.Helper()
			must.OK(t, syscall.Mkfifo(filepath.Join(append([]string{run}, names...)...), 0o600))
		}
	}
	for name, c := range map[string]struct {
		control string // the control program's script, "" = noMPS
		want    string // what a prolog says, or one of several with | between them
		spoil   func(t *testing.T, run string)
		args    []string // RUN stands for the run folder
		env     []string
	}{
		"MPS hangs":                      {control: "exec sleep 600"},
		"MPS hangs with its output open": {control: "sleep 10 & exec sleep 600"},
		// One that waits for a dead disk takes no notice of SIGKILL; a stopped one takes notice of nothing else.
		"what hangs can't be ended": {control: "kill -STOP $PPID; exec sleep 600", want: "left behind"},
		"MPS fails":                 {want: "MPS daemon"},
		"no MPS": {
			want: "nvidia-cuda-mps-control or nvidia-cuda-mps-server",
			args: []string{"--mps-control", "/does/not/exist"},
		},
		"settings on a disk that hangs": {
			want: "hangs|not done after", args: []string{"--settings", "RUN/fifo"}, spoil: pipe("fifo"),
		},
		"settings that are none": {want: "yaml", args: []string{"--settings", "RUN/bad"}, spoil: func(t *testing.T, run string) {
			t.Helper()
			must.OK(t, os.WriteFile(filepath.Join(run, "bad"), []byte("sharing: [1\n"), 0o600))
		}},
		"unknown setting":       {want: `no setting "runn_dir"`, args: []string{"--settings", settings}},
		"senseless setting":     {want: `sharing is "both"`, args: []string{"--settings", settings}},
		"no folder to write to": {want: "job 7", args: []string{"--run-dir", settings + "/x"}},
		"hostile job number":    {want: "SLURM_JOB_ID", env: []string{"SLURM_JOB_ID=../../etc/passwd"}},
		"no variables":          {env: []string{"SLURM_JOB_ID=", "SLURM_JOB_UID=", "SLURM_JOB_GPUS="}},
		"unknown option":        {want: "unknown flag", args: []string{"--nonsense"}},
		"endless comment":       {env: []string{"SLURM_JOB_COMMENT=" + strings.Repeat("a\n\xff", 30000)}},
		"the jobs' lock hangs": {spoil: func(t *testing.T, run string) {
			t.Helper()
			lock(t, filepath.Join(run, "jobs"))
			lock(t, filepath.Join(run, "jobs.lock"))
		}},
		"the GPU's lock hangs": {spoil: func(t *testing.T, run string) {
			t.Helper()
			lock(t, filepath.Join(run, "mps/gpu0/lock"))
		}},
		"a job's file hangs, a pipe":       {spoil: pipe("jobs/7.json")},
		"the server's state hangs, a pipe": {spoil: pipe("mps/gpu0/server.json")},
		"a daemon hangs that takes calls": {control: "exec sleep 600", spoil: func(t *testing.T, run string) {
			t.Helper()
			for _, name := range []string{"control", "control_privileged"} {
				l := must.Get(net.Listen("unixpacket", filepath.Join(run, "mps/gpu0/pipe", name)))(t)
				t.Cleanup(func() { _ = l.Close() })
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []string{"prolog", "epilog", "taskprolog"} {
				run := must.Get(os.MkdirTemp("", "sbl"))(t) // sockets need a short path
				t.Cleanup(func() { os.RemoveAll(run) })
				for _, sub := range []string{"jobs", "ended", "mps/gpu0/pipe"} {
					must.OK(t, os.MkdirAll(filepath.Join(run, sub), 0o755))
				}
				if c.spoil != nil {
					c.spoil(t, run)
				}
				deadline := "1m" // that a busy machine doesn't pass
				if strings.Contains(name, "hangs") {
					deadline = "3s" // by which a busy machine has come to what hangs
				}
				args := []string{
					kind, "--run-dir", run, "--mps-control", script(t, cmp.Or(c.control, noMPS)), "--deadline", deadline,
				}
				for _, a := range c.args {
					args = append(args, strings.Replace(a, "RUN", run, 1))
				}
				r := hook(t, args, job(c.env...)...)
				// What hangs does so for ten minutes.
				if r.status != 0 || r.took > 5*time.Minute {
					t.Errorf("%s: exit %d after %v: %s", kind, r.status, r.took, r.stderr)
				}
				says := func(want string) bool { return strings.Contains(r.stderr, want) }
				if kind == "prolog" && !slices.ContainsFunc(strings.Split(c.want, "|"), says) {
					t.Errorf("it says %q, want %q", r.stderr, c.want)
				}
				if _, err := os.Stat(filepath.Join(run, "jobs/7.json")); c.control != "" && kind == "prolog" && err != nil {
					t.Errorf("%v; MPS must not cost the record", err)
				}
				const jax, tf = "XLA_PYTHON_CLIENT_PREALLOCATE=false", "TF_FORCE_GPU_ALLOW_GROWTH=true"
				out := strings.TrimPrefix(r.out, "export "+jax+"\nexport "+tf+"\n")
				out = strings.TrimPrefix(out, "export SLURMBRIDGE_FRAMEWORKS=7:"+jax+":"+tf+"\n")
				if out != "" || kind != "taskprolog" && r.out != "" {
					t.Errorf("%s prints %q", kind, r.out)
				}
			}
		})
	}
}

// lock takes the lock of a file or a folder until the test ends.
func lock(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		f, err = os.Create(path)
	}
	must.OK(t, err)
	t.Cleanup(func() { f.Close() })
	must.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
}

func TestNotAHook(t *testing.T) {
	if r := hook(t, []string{"nonsense"}); r.status != 2 || !strings.Contains(r.stderr, "nonsense") {
		t.Errorf("%+v", r)
	}
	if r := hook(t, []string{"--help"}); r.status != 0 || !strings.Contains(r.out, "TaskProlog") {
		t.Errorf("%+v", r)
	}
}

// runScript runs a script of etc/hooks for job 7, with files in the folder of jobs ("" = there is none). It returns what
// the script prints and how often it calls the program.
func runScript(t *testing.T, name, file string, env []string) (out string, calls int) {
	t.Helper()
	dir := t.TempDir()
	program, jobs := filepath.Join(dir, "hook"), filepath.Join(dir, "jobs")
	must.OK(t, os.WriteFile(program, []byte("#!/bin/sh\necho $1 >>"+dir+"/calls\n"), 0o755))
	if file != "" {
		must.OK(t, os.Mkdir(jobs, 0o755), os.WriteFile(filepath.Join(jobs, file), nil, 0o600))
	}
	text := string(must.Get(os.ReadFile("../../../etc/hooks/" + name))(t))
	cmd := exec.Command("/bin/sh", "-eu", "-c",
		strings.NewReplacer("/usr/sbin/slurmbridge-hook", program, "/run/slurmbridge/jobs", jobs).Replace(text))
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "SLURM_JOB_ID=7"}, env...)
	said := must.Get(cmd.CombinedOutput())(t)
	called, _ := os.ReadFile(filepath.Join(dir, "calls"))
	return string(said), strings.Count(string(called), name+"\n")
}

// The scripts start the program for jobs that it concerns, and for no others: a job without a GPU pays for a shell.
func TestScriptsCallTheProgramForJobsWithGPUs(t *testing.T) {
	const gpu = "SLURM_JOB_GPUS=0"
	for _, c := range []struct {
		script string
		file   string // in the folder of jobs
		env    []string
		calls  int
	}{
		{"prolog", "", nil, 0},
		{"prolog", "", []string{gpu}, 1},
		{"taskprolog", "", nil, 0},
		{"taskprolog", "", []string{gpu}, 0},
		{"taskprolog", "", []string{gpu, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}, 1},
		{"taskprolog", "", []string{gpu, "SLURM_SHARDS_ON_NODE=50"}, 1},
		{"epilog", "8.json", nil, 0},
		{"epilog", "8.json", []string{gpu}, 1},
		{"epilog", "7.json", nil, 1}, // slurmctld no longer knows it
		{"epilog", "", nil, 1},       // the folder may be another one
	} {
		out, calls := runScript(t, c.script, c.file, c.env)
		must.Equal(t, calls, c.calls, "%s with %v calls the program", c.script, c.env)
		must.Equal(t, c.script != "taskprolog" && out != "", false, "%s with %v prints %q", c.script, c.env, out)
	}
}

// A job that a sharer submits inherits what was set for the sharer's GPU, and to keep its frameworks from taking the
// whole card: that is unset, but for what the sharer has set to something else. A step of the sharer keeps it.
func TestInheritedVariablesAreUnset(t *testing.T) {
	const (
		jax, tf = "XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH"
		mps     = "CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_ACTIVE_THREAD_PERCENTAGE SLURMBRIDGE_MPS_JOB"
		mark    = "SLURMBRIDGE_FRAMEWORKS"
	)
	for _, c := range []struct{ env, unset string }{
		{"SLURM_SHARDS_ON_NODE=50", "SLURM_SHARDS_ON_NODE"},
		{"SLURMBRIDGE_MPS_JOB=6 CUDA_MPS_PIPE_DIRECTORY=/run/slurmbridge/mps/gpu0/pipe", mps},
		{"SLURMBRIDGE_MPS_JOB=7 CUDA_MPS_PIPE_DIRECTORY=/run/slurmbridge/mps/gpu0/pipe", ""},
		{"SLURMBRIDGE_MPS_JOB= CUDA_MPS_PIPE_DIRECTORY=/run/slurmbridge/mps/gpu0/pipe", ""},
		{mark + "=6:" + jax + "=false:" + tf + "=true " + jax + "=false " + tf + "=true", jax + " " + tf + " " + mark},
		{mark + "=6:" + jax + "=false " + jax + "=false " + tf + "=true", jax + " " + mark},
		{mark + "=6:" + jax + "=false " + jax + "=true", mark},
		{mark + "=6:PATH=/x:" + jax + "=fals " + jax + "=false", mark},
		{mark + "=6:" + jax + "=false", mark},
		{mark + "=7:" + jax + "=false " + jax + "=false", ""},
		{mark + "= " + jax + "=false", ""},
	} {
		want := ""
		for _, name := range strings.Fields("SLURM_SCRIPT_CONTEXT " + c.unset) {
			want += "unset " + name + "\n"
		}
		out, _ := runScript(t, "taskprolog", "", strings.Fields(c.env))
		must.Equal(t, out, want, c.env)
	}
}

// The help names the hooks as the sample slurm.conf does, and each is there.
func TestHelpNamesTheHooks(t *testing.T) {
	const etc = "../../../etc/"
	sample := must.Get(os.ReadFile(etc + "slurm.conf.slurmbridge"))(t)
	help := hook(t, []string{"--help"}).out
	n := 0
	for line := range strings.Lines(help) {
		key, path, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || !strings.HasSuffix(key, "log") {
			continue
		}
		n++
		must.Contain(t, string(sample), "\n"+key+"="+path+"\n", "the sample slurm.conf")
		body := must.Get(os.ReadFile(etc + "hooks/" + filepath.Base(path)))(t)
		must.Contain(t, string(body), "slurmbridge-hook "+filepath.Base(path)+" && break\n", path)
	}
	must.Equal(t, n, 3, "hooks in\n%s", help)
}

// manual is what slurmbridge-hook(8) has beyond the help.
const manual = `
# FILES

**/etc/slurmbridge/node.yaml**
: Settings of the node, each with its default and its meaning.

**/usr/lib/slurmbridge/prolog**, **epilog**, **taskprolog**
: What slurm.conf names.

**/run/slurmbridge/jobs**
: The jobs on this node.

**/run/slurmbridge/mps**
: The MPS daemon of each shared GPU: its pipe and its log.

# SEE ALSO

**slurmbridge-node.yaml**(5), **gpuprof**(8)
`

func TestManualOfTheHooks(t *testing.T) { mantest.Manual(t, newRoot(io.Discard, os.Getenv), manual) }
