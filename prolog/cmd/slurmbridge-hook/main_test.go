package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/mungetest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
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
func hook(t *testing.T, name string, args []string, env ...string) result {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	if dir := os.Getenv("SLURMBRIDGE_BUILD"); dir != "" && !testing.Short() {
		exe = filepath.Join(dir, "slurmbridge-hook")
	}
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = name
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

// Whatever is wrong with the node, a hook ends in exit 0 in time and says what it
// was.
func TestAlwaysExitZeroInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	must.OK(t, syscall.Mkfifo(fifo, 0o600))
	blocked := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(blocked, nil, 0o600))
	bad := filepath.Join(t.TempDir(), "node.yaml")
	must.OK(t, os.WriteFile(bad, []byte("runn_dir: /x\nsharing: [1\n"), 0o600))
	unknown := filepath.Join(t.TempDir(), "node.yaml")
	must.OK(t, os.WriteFile(unknown, []byte("runn_dir: /x\nsharing: both\n"), 0o600))
	run := func() string { return "--run-dir=" + t.TempDir() }
	for _, c := range []struct {
		name, want string
		args       []string
		env        []string
	}{
		{"MPS hangs", "", []string{run(), "--mps-control", script(t, "exec sleep 60")}, job()},
		{"MPS hangs with its output open", "", []string{run(), "--mps-control", script(t, "sleep 3 & exec sleep 60")}, job()},
		{"MPS fails", "MPS daemon", []string{run(), "--mps-control", script(t, "echo no device >&2; exit 1")}, job()},
		{
			"no MPS", "nvidia-cuda-mps-control or nvidia-cuda-mps-server",
			[]string{run(), "--mps-control", "/does/not/exist"},
			job(),
		},
		{"settings on a disk that hangs", "hangs|not done after", []string{run(), "--settings", fifo}, job()},
		{"settings that are none", "yaml", []string{run(), "--settings", bad}, job()},
		{"unknown setting", `no setting "runn_dir"`, []string{run(), "--settings", unknown}, job()},
		{"senseless setting", `sharing is "both"`, []string{run(), "--settings", unknown}, job()},
		{"no folder to write to", "job 7", []string{"--run-dir", blocked + "/x"}, job()},
		{"hostile job number", "SLURM_JOB_ID", []string{run()}, job("SLURM_JOB_ID=../../etc/passwd")},
		{"no variables", "", []string{run()}, nil},
		{"unknown option", "unknown flag", []string{"--nonsense"}, job()},
		{
			"endless comment", "",
			[]string{run(), "--mps-control", script(t, "exit 1")},
			job("SLURM_JOB_COMMENT=" + strings.Repeat("a\n\xff", 30000)),
		},
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
			const jax, tf = "XLA_PYTHON_CLIENT_PREALLOCATE=false", "TF_FORCE_GPU_ALLOW_GROWTH=true"
			out := strings.TrimPrefix(r.out, "export "+jax+"\nexport "+tf+"\n")
			out = strings.TrimPrefix(out, "export SLURMBRIDGE_FRAMEWORKS=7:"+jax+":"+tf+"\n")
			if out != "" || kind != "taskprolog" && r.out != "" {
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
			must.OK(t, syscall.Mkfifo(filepath.Join(run, "jobs", "7.json"), 0o600))
		},
		"a pipe for the server's state": func(t *testing.T, run string) {
			must.OK(t, syscall.Mkfifo(filepath.Join(run, "mps", "gpu0", "server.json"), 0o600))
		},
		"a daemon that never answers": func(t *testing.T, run string) {
			// What the real control program does: it connects, asks and waits.
			for _, name := range []string{"control", "control_privileged"} {
				l := must.Get(net.Listen("unixpacket", filepath.Join(run, "mps", "gpu0", "pipe", name)))(t)
				t.Cleanup(func() { _ = l.Close() })
			}
		},
	} {
		for _, kind := range []string{"prolog", "epilog", "taskprolog"} {
			run := must.Get(os.MkdirTemp("", "sbl"))(t) // sockets need a short path
			defer os.RemoveAll(run)
			for _, sub := range []string{"jobs", "ended", "mps/gpu0/pipe"} {
				must.OK(t, os.MkdirAll(filepath.Join(run, sub), 0o755))
			}
			hang(t, run)
			r := hook(t, kind, []string{"--run-dir", run, "--mps-control", script(t, "exec sleep 60"), "--deadline", "400ms"},
				job()...)
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
			err := errors.Join(os.Mkdir(filepath.Join(dir, "jobs"), 0o755),
				os.WriteFile(filepath.Join(dir, "jobs", c.files), nil, 0o600))
			if err != nil {
				t.Fatal(err)
			}
		}
		text := must.Get(os.ReadFile("../../../etc/hooks/" + c.script))(t)
		program := filepath.Join(dir, "hook")
		must.OK(t, os.WriteFile(program, []byte("#!/bin/sh\necho $1 >>"+dir+"/calls\n"), 0o755))
		cmd := exec.Command("/bin/sh", "-eu", "-c", strings.NewReplacer(
			"/usr/sbin/slurmbridge-hook", program, "/run/slurmbridge/jobs", filepath.Join(dir, "jobs")).Replace(string(text)))
		cmd.Env = append([]string{"SLURM_JOB_ID=7"}, c.env...)
		says := "" // what Slurm reads of a task prolog
		if c.script == "taskprolog" {
			says = "unset SLURM_SCRIPT_CONTEXT\n"
			if strings.Contains(strings.Join(c.env, " "), "SHARDS") {
				says += "unset SLURM_SHARDS_ON_NODE\n"
			}
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
	text := must.Get(os.ReadFile("../../../etc/hooks/taskprolog"))(t)
	says := func(job string) string {
		cmd := exec.Command("/bin/sh", "-eu", "-c", string(text))
		cmd.Env = []string{
			"SLURM_JOB_ID=7", "SLURMBRIDGE_MPS_JOB=" + job,
			"CUDA_MPS_PIPE_DIRECTORY=/run/slurmbridge/mps/gpu0/pipe",
		}
		out := must.Get(cmd.Output())(t)
		return string(out)
	}
	const always = "unset SLURM_SCRIPT_CONTEXT\n"
	if got, want := says("6"),
		always+"unset CUDA_MPS_PIPE_DIRECTORY\nunset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\nunset "+
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\nunset SLURMBRIDGE_MPS_JOB\n"; got != want {
		t.Errorf("of another job: %q", got)
	}
	for _, job := range []string{"7", ""} {
		must.Equal(t, says(job), always, "of job %q", job)
	}
}

// What kept a sharer's frameworks from taking the whole card is unset, too, unless the sharer has set it to something
// else.
func TestInheritedFrameworkSettingsAreUnset(t *testing.T) {
	text := must.Get(os.ReadFile("../../../etc/hooks/taskprolog"))(t)
	const jax, tf = "XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH"
	for _, c := range []struct {
		of    string
		env   []string
		unset []string
	}{
		{"6:" + jax + "=false:" + tf + "=true", []string{jax + "=false", tf + "=true"}, []string{jax, tf}},
		{"6:" + jax + "=false", []string{jax + "=false", tf + "=true"}, []string{jax}},
		{"6:" + jax + "=false", []string{jax + "=true"}, nil},
		{"6:PATH=/x:" + jax + "=fals", []string{jax + "=false"}, nil},
		{"6:" + jax + "=false", nil, nil},
		{"7:" + jax + "=false", []string{jax + "=false"}, nil},
		{"", []string{jax + "=false"}, nil},
	} {
		cmd := exec.Command("/bin/sh", "-eu", "-c", string(text))
		cmd.Env = append([]string{"PATH=/usr/bin:/bin", "SLURM_JOB_ID=7", "SLURMBRIDGE_FRAMEWORKS=" + c.of}, c.env...)
		want := "unset SLURM_SCRIPT_CONTEXT\n"
		for _, name := range c.unset {
			want += "unset " + name + "\n"
		}
		if strings.HasPrefix(c.of, "6:") {
			want += "unset SLURMBRIDGE_FRAMEWORKS\n"
		}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%+v: %v, %q", c, err, out)
		}
	}
}

// The help names the hooks as the sample slurm.conf does, and each is there.
func TestHelpNamesTheHooks(t *testing.T) {
	const etc = "../../../etc/"
	sample := must.Get(os.ReadFile(etc + "slurm.conf.slurmbridge"))(t)
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

func TestManual(t *testing.T) { mantest.Manual(t, newRoot(io.Discard, os.Getenv), manual) }

// BenchmarkHook measures each hook's p50 and p99, ms, as Slurm sees them: with no MPS
// daemon to start, with one (the first sharer of a GPU, and the last), and with one
// that is there. MPS is the simulated one.
func BenchmarkHook(b *testing.B) {
	bin := b.TempDir()
	must.OK(b, built.Into(bin, "slurmbridge-hook", "gpusim"))
	run := must.Get(os.MkdirTemp("", "sbf"))(b) // sockets need a short path, and users' servers one they reach
	b.Cleanup(func() { os.RemoveAll(run) })
	control, state := filepath.Join(bin, "nvidia-cuda-mps-control"), filepath.Join(run, "state")
	settings := filepath.Join(run, "node.yaml")
	for _, err := range []error{
		os.Chmod(run, 0o755),
		os.WriteFile(settings, fmt.Appendf(nil, "run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\n", run, control,
			state), 0o600),
		exec.Command(filepath.Join(bin, "gpusim"), "init", "--state", state).Run(),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	call := func(kind, id, share string) time.Duration {
		cmd := exec.Command(filepath.Join(bin, "slurmbridge-hook"), kind, "--settings", settings)
		cmd.Env = job("SLURM_JOB_ID="+id, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+share)
		start := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil || len(out) > 0 {
			b.Fatalf("%s: %v: %s", kind, err, out)
		}
		return time.Since(start)
	}
	for _, c := range []struct{ name, share, beside string }{
		{"whole", "", ""}, {"alone", "50", ""}, {"beside", "50", "8"},
	} {
		b.Run(c.name, func(b *testing.B) {
			if c.beside != "" {
				call("prolog", c.beside, c.share)
				defer call("epilog", c.beside, c.share)
			}
			took := map[string][]time.Duration{}
			for range b.N {
				for _, kind := range []string{"prolog", "epilog"} {
					took[kind] = append(took[kind], call(kind, "7", c.share))
				}
			}
			for kind, all := range took {
				slices.Sort(all)
				for _, q := range []int{50, 99} {
					b.ReportMetric(all[min(len(all)-1, len(all)*q/100)].Seconds()*1e3, fmt.Sprintf("%s-p%d-ms", kind, q))
				}
			}
		})
	}
	if left, _ := filepath.Glob(filepath.Join(run, "mps/*/pipe")); len(left) > 0 {
		b.Errorf("left: %s", strings.Join(left, " "))
	}
}

// On a V100 a job is held to what the controller gave it: it runs as it did, and one that
// takes more is refused alone. A job that the controller can't tell of isn't held. Nothing
// is set in node.yaml but the controller.
func TestMemoryLimitByProfile(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: jobs of other users")
	}
	run, err := os.MkdirTemp("", "sbm") // sockets need a short path, and users one they reach
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	in := func(name string) string { return filepath.Join(run, name) }
	must.OK(t, built.Into(in("bin"), "slurmbridge-hook", "gpusim"))
	known, _ := apps.ByName("vgg16")
	need := known.Peak().MemMiB
	limit := int64(known.NeedMiB(.1))
	m := mungetest.Start(t, mungetest.Key, 0)
	asker := &httpapi.Asker{
		Header: m.Header(), Hint: m.Hint,
		Decode:  func(ctx context.Context, _, cred string) (*credential.Credential, error) { return m.Decode(ctx, cred) },
		Trusted: func(uid uint32) bool { return uid == 0 },
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+httpapi.MemoryPath,
		&httpapi.Memory{Asker: asker, Limit: func(_ context.Context, ref, user string) (out httpapi.MemoryReport, err error) {
			switch {
			case ref == "8":
				return out, errors.New("no journal")
			case user != "nobody":
				return out, nil
			}
			return httpapi.MemoryReport{MiB: limit}, nil
		}})
	controller := httptest.NewServer(mux)
	defer controller.Close()
	state, control := in("state"), in("bin/nvidia-cuda-mps-control")
	for _, err := range []error{
		os.Chmod(run, 0o755),
		os.WriteFile(in("node.yaml"),
			fmt.Appendf(nil, "run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\ncontroller: %s\nmunge_socket: %s\n", run,
				control, state, controller.URL, m.Socket), 0o644),
		exec.Command(in("bin/gpusim"), "init", "--state", state, "--model", "v100", "--scale", "20").Run(),
		prolog.Dir(run).WriteCards([]prolog.Card{{MemLimits: true, MemMiB: 16160}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	call := func(kind, id string, as *syscall.SysProcAttr) (out, stderr string) {
		t.Helper()
		var o, e bytes.Buffer
		cmd := exec.Command(in("bin/slurmbridge-hook"), kind, "--settings", in("node.yaml"))
		cmd.Env, cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = job("SLURM_JOB_ID="+id), "/", as, &o, &e
		must.OK(t, cmd.Run())
		return o.String(), e.String()
	}
	if _, said := call("prolog", "7", nil); said != "" {
		t.Error(said)
	}
	if _, said := call("prolog", "8", nil); strings.Count(said, "\n") != 1 ||
		!strings.Contains(said, "job 8 goes without a memory limit") {
		t.Errorf("where the controller fails it says %q, want one line", said)
	}
	defer func() {
		for _, id := range []string{"7", "8"} {
			call("epilog", id, nil)
		}
		if left, _ := filepath.Glob(in("mps/gpu0/limits.json")); len(left) > 0 {
			t.Error("left:", left)
		}
	}()
	var vars [2][]string
	for i, id := range []string{"7", "8"} {
		out, said := call("taskprolog", id, user)
		want := fmt.Sprintf("export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM\n", limit)
		if said != "" || strings.Contains(out, want) != (id == "7") || strings.Contains(out, "PINNED") != (id == "7") {
			t.Errorf("job %s: %q, %q; want %q of job 7 only", id, out, said, want)
		}
		vars[i] = []string{"GPUSIM_STATE=" + state}
		for line := range strings.Lines(out) {
			vars[i] = append(vars[i], strings.TrimPrefix(strings.TrimSpace(line), "export "))
		}
	}
	start := func(vars []string, args ...string) (end func() (bool, string)) {
		var out bytes.Buffer
		cmd := exec.Command(in("bin/gpusim"), append([]string{"run", "vgg16", "--duration-scale", "0.05"}, args...)...)
		cmd.Env, cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = vars, "/", user, &out, &out
		must.OK(t, cmd.Start())
		return func() (bool, string) { err := cmd.Wait(); return err == nil, out.String() }
	}
	// there is room for all of them
	neighbour := start(vars[1], "--mem-mib", fmt.Sprint(need*.5), "--duration-scale", "0.5")
	if ok, said := start(vars[0])(); !ok || !strings.Contains(said, `"mps":true`) {
		t.Errorf("as it ran alone: %s", said)
	}
	if ok, said := start(vars[0], "--mem-mib", fmt.Sprint(need*1.2))(); ok || !strings.Contains(said, "memory") {
		t.Errorf("it took more than its limit: %s", said)
	}
	if ok, said := neighbour(); !ok {
		t.Errorf("its neighbour: %s", said)
	}
}
