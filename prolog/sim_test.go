package prolog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// bench runs applications on a simulated node, as the task prolog tells them to.
type bench struct {
	h          *Hook
	sim, state string
	uid        uint32 // of the applications
}

// node makes a node with two simulated GPUs of a model, at so many GPU seconds a second, whose cards the hooks know.
func node(t *testing.T, model string, scale int, init ...string) (*Hook, *bench) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: jobs of other users")
	}
	h := simulated(t, append([]string{"--model", model, "--scale", strconv.Itoa(scale)}, init...)...)
	h.Cards = []Card{{Index: 0, MemMiB: 40960, Clients: 48}}
	begin := time.Now()
	// On a busy machine, too, no job is there for so long that it counts as gone.
	h.Now = func() time.Time { return begin.Add(time.Since(begin) / 100) }
	return h, &bench{
		h: h, sim: filepath.Join(filepath.Dir(h.MPS.Control), "gpusim"), state: h.Dir.path("state"), uid: 1000,
	}
}

// vars are a job's variables after the task prolog.
func (b *bench) vars(t *testing.T, job string) (vars []string, err error) {
	t.Helper()
	var out bytes.Buffer
	err = b.h.TaskProlog(&out, env("SLURM_JOB_ID", job, "SLURM_JOB_UID", fmt.Sprint(b.uid)))
	vars = []string{"GPUSIM_STATE=" + b.state, "CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(t.TempDir(), "none")}
	for line := range strings.Lines(out.String()) {
		vars = append(vars, strings.TrimPrefix(strings.TrimSpace(line), "export "))
	}
	return vars, err
}

// run starts an application of a job; unless args say otherwise it takes hours, so it outlasts its test at any pace.
func (b *bench) run(t *testing.T, job string, args ...string) *app {
	t.Helper()
	cmd := exec.Command(b.sim, append([]string{"run", "vgg16", "--duration-scale", "10000"}, args...)...)
	vars, err := b.vars(t, job)
	cmd.Env = vars
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: b.uid, Gid: b.uid}}
	a := b.start(t, cmd)
	a.taskErr = err
	return a
}

func (b *bench) start(t *testing.T, cmd *exec.Cmd) *app {
	t.Helper()
	a := &app{cmd: cmd}
	cmd.Stdout, cmd.Stderr = &a.out, &a.stderr
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return a
}

// served has an application of a job compute for a moment, and fails the test unless it ends well, with MPS or without.
// want is what the task prolog's error says, "" = none.
func (b *bench) served(t *testing.T, job string, mps bool, want string) {
	t.Helper()
	a := b.run(t, job, "--duration-scale", "0.001")
	says(t, a.taskErr, want, "the task prolog")
	if status, by := a.end(); status != 0 || by != mps {
		t.Errorf("job %s: %d, MPS %v: %s", job, status, by, &a.stderr)
	}
}

// shared has jobs 7 and 8 share the first GPU, and returns what 7 computes there.
func (b *bench) shared(t *testing.T) *app {
	t.Helper()
	must.OK(t, b.h.Prolog(t.Context(), env()))
	must.OK(t, b.h.Prolog(t.Context(), env("SLURM_JOB_ID", "8")))
	a := b.run(t, "7")
	until(t, "a client", func() bool { return b.h.clientsOf(t) == 1 })
	return a
}

// app is a program that computes on a simulated GPU.
type app struct {
	cmd         *exec.Cmd
	out, stderr bytes.Buffer
	taskErr     error // the task prolog's
}

// end waits for it, minutes at most; mps reports whether it was served by MPS.
func (a *app) end() (status int, mps bool) {
	defer time.AfterFunc(5*time.Minute, func() { _ = a.cmd.Process.Kill() }).Stop()
	_ = a.cmd.Wait()
	var r struct{ MPS bool }
	_ = json.Unmarshal(a.out.Bytes(), &r)
	return a.cmd.ProcessState.ExitCode(), r.MPS
}

// says fails the test unless an error says what is wanted; "" = there is to be none.
func says(t *testing.T, err error, want string, of ...any) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%v %v, want %q", of, err, want)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

func (h *Hook) clientsOf(t *testing.T) int {
	t.Helper()
	out, err := h.MPS.command(context.Background(), 0, "get_client_list "+strconv.Itoa(h.Dir.Server(0).PID))
	if err != nil {
		return -1
	}
	return len(strings.Fields(out))
}

// asked returns what tells which questions the daemon is asked from now on, a line each.
func (h *Hook) asked(t *testing.T) func() string {
	t.Helper()
	log, control := filepath.Join(t.TempDir(), "asked"), filepath.Join(t.TempDir(), controlName)
	must.OK(t, os.WriteFile(control, fmt.Appendf(nil, "#!/bin/sh\ntee -a %s | %s\n", log, h.MPS.Control), 0o755))
	h.MPS.Control = control
	return func() string { t.Helper(); return string(must.Get(os.ReadFile(log))(t)) }
}

// watch looks at all GPUs, as hooks do when a job comes or goes.
func (h *Hook) watch(ctx context.Context) (err error) {
	for _, c := range h.Cards {
		err = errors.Join(err, h.onGPU(ctx, c.Index, func(jobs []*JobFile) error { return h.afterwards(ctx, c.Index, jobs) }))
	}
	return err
}

func read(t *testing.T, path string) *JobFile {
	t.Helper()
	j, err := ReadJob(path)
	must.OK(t, err)
	return j
}

// Jobs that share a GPU lose their work with its MPS server: each of them is marked, in its file while it runs and in
// what the agent gets at its end. One without MPS is no victim, nor is a newcomer, which gets a server again.
func TestJobsThatLoseTheirServer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	fault := func(t *testing.T, b *bench) int {
		t.Helper()
		bad := b.run(t, "8", "--fault-at", "1")
		if status, by := bad.end(); status != 4 || !by {
			t.Fatalf("no fault of a client: %d, %v: %s", status, bad.taskErr, &bad.stderr)
		}
		return bad.cmd.Process.Pid
	}
	for name, c := range map[string]struct {
		model string
		init  []string
		// lose has the server end or fault, and returns whose fault the hooks will find it.
		lose func(t *testing.T, b *bench) (by []int)
		// unseen: nobody looks before the first of them ends.
		unseen bool
	}{
		"killed": {"titanxp", nil, func(t *testing.T, b *bench) []int {
			t.Helper()
			server := b.h.Dir.Server(0)
			must.OK(t, syscall.Kill(server.PID, syscall.SIGKILL))
			until(t, "the server's end", func() bool { return started("", server.PID) != server.Started })
			return nil
		}, false},
		// It is alive at the first question of a look, and gone at the second.
		"killed under a look": {"titanxp", nil, func(t *testing.T, b *bench) []int {
			t.Helper()
			must.OK(t, b.h.watch(t.Context()))
			server := b.h.Dir.Server(0).PID
			b.h.MPS.Proc = t.TempDir() // there it never ends
			processIn(t, b.h.MPS.Proc, server, map[string]string{"stat": string(procFile("", server, "stat"))})
			must.OK(t, syscall.Kill(server, syscall.SIGKILL))
			until(t, "the daemon's notice", func() bool {
				out, err := b.h.MPS.command(t.Context(), 0, "get_server_list")
				return err == nil && strings.TrimSpace(out) == ""
			})
			return nil
		}, false},
		"a client faults before Volta, which ends the server": {
			"titanxp", nil,
			func(t *testing.T, b *bench) []int {
				t.Helper()
				server := b.h.Dir.Server(0)
				fault(t, b)
				until(t, "the server's end", func() bool { return started("", server.PID) != server.Started })
				return nil
			}, true,
		},
		// A driver before 550 doesn't say of a server that it has faulted: the server's log does, and whose fault it was.
		"a client faults on a driver that doesn't tell": {
			"a100",
			[]string{"--driver", "535"},
			func(t *testing.T, b *bench) []int { t.Helper(); return []int{fault(t, b)} }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, b := node(t, c.model, 50, c.init...)
			ctx := t.Context()
			a := b.shared(t)
			must.OK(t, h.Dir.Begin(&JobFile{JobID: 6, GPUs: []int{0}, Percent: 10, Start: time.Now()})) // without MPS
			by := c.lose(t, b)
			if status, _ := a.end(); status == 0 {
				t.Error("job 7 didn't notice")
			}
			if c.unseen {
				says(t, h.Epilog(ctx, env("SLURM_JOB_ID", "8")), "lost under jobs 7")
			} else {
				says(t, h.watch(ctx), "lost under jobs 7, 8")
				h.MPS.Proc = ""
			}
			must.OK(t, h.watch(ctx)) // told once
			at := read(t, h.Dir.running(7)).MPSFault
			must.OK(t, h.Prolog(ctx, env("SLURM_JOB_ID", "9")))
			b.served(t, "9", true, "")
			for id, victim := range map[string]bool{"6": false, "7": true, "8": true, "9": false} {
				must.OK(t, h.Epilog(ctx, env("SLURM_JOB_ID", id)))
				j := read(t, h.Dir.path("ended", id+"-0.json"))
				must.Equal(t, !j.MPSFault.IsZero(), victim, "job %s is a victim", id)
				must.Equal(t, j.MPS, id != "6", "MPS of job %s", id)
				if victim {
					must.Equal(t, j.MPSFaultBy, by, "of job %s", id)
				}
			}
			must.Equal(t, read(t, h.Dir.path("ended", "7-0.json")).MPSFault.Equal(at), true, "the fault's time stays")
		})
	}
}

// Each question is a process, and a job waits for it: of a server that serves already a prolog asks where it is, how it
// is, and how full.
func TestServingServerIsAskedOnce(t *testing.T) {
	h, b := node(t, "v100", 20, "--driver", "555")
	h.MPS.Multiuser = true
	must.OK(t, h.Prolog(t.Context(), env()))
	b.run(t, "7")
	until(t, "a server", func() bool { s, _, _ := h.refresh(t.Context(), 0, nil); return s.PID != 0 })
	asked := h.asked(t)
	must.OK(t, h.Prolog(t.Context(), env("SLURM_JOB_ID", "9")))
	var questions []string
	for line := range strings.Lines(asked()) {
		questions = append(questions, strings.Fields(line)[0])
	}
	must.Equal(t, questions, []string{"get_server_list", "get_server_status", "get_client_list"})
	must.Equal(t, read(t, h.Dir.running(9)).MPS, true)
}

// Drivers before 550 log that a server is ready, some time after they have answered a question.
func TestLogThatComesLate(t *testing.T) {
	control := filepath.Join(t.TempDir(), controlName)
	must.OK(t,
		os.WriteFile(control, []byte("#!/bin/sh\nread line\necho 'Unknown command \"get_server_status\"'\n"), 0o755))
	m := &MPS{Dir: Dir(t.TempDir()), Control: control, Answer: time.Minute}
	must.OK(t, os.MkdirAll(m.log(0), 0o755))
	const (
		line  = "[2026-11-28 21:58:41.477 Control 29306] "
		start = line + "Starting new server 41 for user 1000\n"
		asked = line + "Cmd:get_server_status 41\n"
	)
	for log, ready := range map[string]bool{
		"":                                      false,
		start:                                   false,
		start + asked:                           false,
		start + line + "NEW SERVER 41: Ready\n": true,
		asked:                                   true, // its beginning was cut off
	} {
		must.OK(t, os.WriteFile(filepath.Join(m.log(0), controlLog), []byte(log), 0o600))
		must.Equal(t, must.Get(m.ready(t.Context(), 0, 41))(t), ready, log)
	}
}

// While a server ends, its successor may stand beside it in the daemon's list.
func TestTwoServers(t *testing.T) {
	control := filepath.Join(t.TempDir(), controlName)
	must.OK(t, os.WriteFile(control,
		[]byte("#!/bin/sh\nread what _\n[ $what = get_server_list ] && printf '101\\n202\\n' || echo ACTIVE\n"), 0o755))
	m := &MPS{Dir: Dir(t.TempDir()), Control: control, Answer: time.Minute}
	for known, want := range map[int]int{0: 202, 101: 101, 202: 202, 303: 202} {
		must.Equal(t, must.Get(m.ask(t.Context(), 0, Server{PID: known}, 0, time.Now()))(t).PID, want, "%d was known", known)
	}
}

// A process that is ending is no longer there, though the kernel still lists it.
func TestAProcessThatEndsIsNotThere(t *testing.T) {
	const rest = " 1 100 100 0 -1 %s 10 0 0 0 1 2 0 0 20 0 1 0 4711 1000 100"
	for _, c := range []struct {
		stat string
		want uint64
	}{
		{"100 (nvidia-cuda-mps) S" + fmt.Sprintf(rest, "4194304"), 4711},
		{"100 (a ) S 1 (b) R" + fmt.Sprintf(rest, "4194304"), 4711},
		{"100 (nvidia-cuda-mps) Z" + fmt.Sprintf(rest, "4194308"), 0},
		{"100 (nvidia-cuda-mps) R" + fmt.Sprintf(rest, "4194308"), 0},
		{"100 (nvidia-cuda-mps) R" + fmt.Sprintf(rest, "x"), 0},
		{"100 (nvidia-cuda-mps) R 1 2", 0},
		{"", 0},
	} {
		proc := t.TempDir()
		processIn(t, proc, 100, map[string]string{"stat": c.stat})
		must.Equal(t, started(proc, 100), c.want, c.stat)
	}
	if started("", os.Getpid()) == 0 || started("", 1<<30) != 0 {
		t.Error("this process isn't there, or one that can't be is")
	}
}

// From Volta on a faulted server takes no clients until those it has are gone. The GPU
// is left out of MPS so long: a newcomer computes without rather than fail.
func TestPoisonedServerIsLeftAlone(t *testing.T) {
	h, b := node(t, "a100", 50)
	b.uid = 0 // this process is a client, too
	ctx := context.Background()
	must.OK(t, h.Prolog(ctx, env("SLURM_JOB_UID", "0")))
	must.OK(t, h.Prolog(ctx, env("SLURM_JOB_UID", "0", "SLURM_JOB_ID", "8")))
	// A client that has lost its context and stays all the same.
	vars, err := b.vars(t, "7")
	must.OK(t, err)
	victim, err := mps.Connect(ctx, func(name string) (value string) {
		for _, v := range vars {
			if rest, ok := strings.CutPrefix(v, name+"="); ok {
				value = rest
			}
		}
		return value
	})
	must.OK(t, err)
	status, _ := b.run(t, "8", "--fault-at", "1").end()
	must.Equal(t, status != 0, true, "it faults")
	says(t, h.Prolog(ctx, env("SLURM_JOB_UID", "0", "SLURM_JOB_ID", "9")), "job 9 goes without")
	if h.Dir.Server(0).Takes() || read(t, h.Dir.running(9)).MPS || read(t, h.Dir.running(7)).MPSFault.IsZero() {
		t.Errorf("%+v", h.Dir.Server(0))
	}
	b.served(t, "9", false, "takes no new clients")
	must.Equal(t, read(t, h.Dir.running(9)).MPSFault.IsZero(), true, "a job without MPS is no victim")
	// When the victims are gone the server is renewed, and the next gets MPS again.
	must.OK(t, victim.Close())
	until(t, "a renewed server", func() bool {
		must.OK(t, h.watch(ctx))
		return h.Dir.Server(0).Takes()
	})
	must.OK(t, h.Prolog(ctx, env("SLURM_JOB_UID", "0", "SLURM_JOB_ID", "10")))
	b.served(t, "10", true, "")
	for _, id := range []string{"7", "8", "9", "10"} {
		must.OK(t, h.Epilog(ctx, env("SLURM_JOB_ID", id)))
	}
	must.Is(t, must.Err(os.Stat(h.MPS.Pipe(0))), os.ErrNotExist, "the daemon's pipe directory")
}

// With all the clients a server can have, the next job goes without MPS.
func TestAsManyClientsAsTheCardServes(t *testing.T) {
	const most = 16
	h, b := node(t, "titanxp", 1)
	h.Cards[0].Clients = most
	must.OK(t, h.Prolog(t.Context(), env()))
	var last *app
	for range most {
		// None ends while the others start, however long that takes.
		last = b.run(t, "7", "--mem-mib", "50")
	}
	until(t, fmt.Sprint(most, " clients"), func() bool { return h.clientsOf(t) == most })
	says(t, h.Prolog(t.Context(), env("SLURM_JOB_ID", "8")), "as many clients as it serves; job 8 goes without")
	b.served(t, "8", false, "takes no new clients")
	_ = last.cmd.Process.Kill()
	_, _ = last.end()
	until(t, "room", func() bool { return h.watch(t.Context()) == nil && h.Dir.Server(0).Takes() })
	must.OK(t, h.Prolog(t.Context(), env("SLURM_JOB_ID", "9")))
}

// A log is read while its daemon writes: each line once, and whole.
func TestALogGrows(t *testing.T) {
	m := &MPS{Dir: Dir(t.TempDir())}
	path := filepath.Join(m.log(0), serverLog)
	must.OK(t, os.MkdirAll(m.log(0), 0o755), os.WriteFile(path, []byte("first\nsec"), 0o600))
	text, n := m.readLog(0, serverLog, 0)
	must.Equal(t, text, "first\n")
	must.OK(t, os.WriteFile(path, []byte("first\nsecond\n"), 0o600))
	text, n = m.readLog(0, serverLog, n)
	must.Equal(t, text, "second\n")
	text, _ = m.readLog(0, serverLog, n)
	must.Equal(t, text, "")
}

// What the servers' logs of the drivers say of a client that has faulted: 470's says nothing.
func TestFaultsIn(t *testing.T) {
	const log = "[2026-11-26 06:31:12.173 Server 26089] Received new client request\n" +
		"[2026-11-26 06:31:13.173 Server 26089] Client process 4711 encountered a fatal GPU error.\n" +
		"[2026-11-26 06:31:13.173 Server 26089] Server is handling a fatal GPU error.\n" +
		"[2026-11-26 06:31:13.173 Server 26089] Status of client {4711, 1} is INACTIVE\n" +
		"[2026-11-26 06:31:13.173 Server 26089] Status of client {4712, 1} is INACTIVE\n" +
		"[2026-11-26 06:31:14.173 Server 26089] Client {PID: 4713, Context ID: 0} encountered a fatal GPU error.\n"
	must.Equal(t, faultsIn(log), []int{4711, 4713})
	must.Equal(t, faultsIn("Client process 99999999999999999999 encountered a fatal GPU error."), nil)
}
