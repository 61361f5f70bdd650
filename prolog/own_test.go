package prolog

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/nvidia"
)

func TestMain(m *testing.M) {
	nvidia.StandIn()
	os.Exit(m.Run())
}

// own runs a test with hooks on a node whose control daemon is NVIDIA's own, of each driver that is here, with a
// stand-in for the server that behaves as told.
func own(t *testing.T, server string, test func(t *testing.T, h *Hook, driver string)) {
	if os.Getuid() != 0 {
		t.Skip("needs root: the server is the job's user's")
	}
	for _, d := range nvidia.Fetched(t) {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			run := must.Get(os.MkdirTemp("", "sbo"))(t) // sockets need a short path, and other users get in
			t.Cleanup(func() { os.RemoveAll(run) })
			must.OK(t, os.Chmod(run, 0o755))
			bin := must.Get(nvidia.Bin(run))(t)
			control := filepath.Join(bin, controlName)
			must.OK(t, os.Symlink(d.Control(), control))
			h := &Hook{Dir: Dir(run), Now: time.Now, Cards: []Card{{}}}
			h.MPS = &MPS{Dir: h.Dir, Control: control, Env: []string{nvidia.ServerEnv + "=" + server, nvidia.DriverEnv + "=" +
				d.Name}, Answer: time.Minute}
			t.Cleanup(func() { h.MPS.kill(0, controlName, serverName) })
			test(t, h, d.Name)
		})
	}
}

// From the first sharer to the last: the server is found beside its daemon, and is ready before the job starts; one
// that a signal ends, which the daemon logs as its own wish, has taken its jobs' work along; whatever its daemon's exit
// status then is, the last epilog ends it without a word.
func TestOwnDaemonServes(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, driver string) {
		must.OK(t, h.Prolog(t.Context(), env()))
		server := h.Dir.Server(0)
		must.Equal(t, owner("", server.PID), 1000, "the server's user")
		must.Equal(t, read(t, h.Dir.running(7)).MPS, true)
		must.Equal(t, must.Get(h.MPS.ready(t.Context(), 0, server.PID))(t), true, "the server is ready before the job starts")
		var out bytes.Buffer
		must.OK(t, h.TaskProlog(&out, env()))
		must.Equal(t, strings.Contains(out.String(), "CUDA_MPS_PIPE_DIRECTORY="), true, out.String())
		must.OK(t, h.Prolog(t.Context(), env()))
		must.Equal(t, owner("", server.PID), 1000, "the server's user, after the prolog was called again")
		must.OK(t, syscall.Kill(server.PID, syscall.SIGKILL))
		until(t, "the server's end", func() bool { return started("", server.PID) != server.Started })
		says(t, h.watch(t.Context()), "lost under jobs 7")
		must.OK(t, h.Epilog(t.Context(), env()))
		must.Equal(t, h.MPS.running(0, controlName, serverName), nil, "what is left")
	})
}

// A server that takes long to initialise, as on a card without persistence mode, is no failed one: the daemon has
// processes wait for it. However many jobs start together meanwhile, each gets MPS: none waits under the GPU's lock.
func TestOwnServerTakesLong(t *testing.T) {
	own(t, nvidia.Starts, func(t *testing.T, h *Hook, _ string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		jobs := []string{"7", "8", "9", "10"}
		ended := make(chan error)
		for _, id := range jobs {
			go func() { ended <- h.Prolog(ctx, env("SLURM_JOB_ID", id)) }()
		}
		for _, id := range jobs {
			until(t, "MPS for job "+id, func() bool { return kept[JobFile](h.Dir.path("jobs", id+".json")).MPS })
		}
		cancel() // as at the hooks' deadline
		for range jobs {
			<-ended
		}
		must.Equal(t, len(must.Get(h.MPS.servers(t.Context(), 0))(t)), 1, "servers")
		for _, id := range jobs {
			must.Equal(t, read(t, h.Dir.path("jobs", id+".json")).MPS, true, "MPS of job %s after the deadline", id)
			var out bytes.Buffer
			must.OK(t, h.TaskProlog(&out, env("SLURM_JOB_ID", id)))
			must.Equal(t, strings.Contains(out.String(), "CUDA_MPS_PIPE_DIRECTORY="), true, out.String())
		}
		h.MPS.Answer = time.Second
		says(t, h.awaitServer(t.Context(), 0, read(t, h.Dir.running(7))), "it still initialises")
	})
}

func TestOwnServerFails(t *testing.T) {
	own(t, nvidia.Fails, func(t *testing.T, h *Hook, _ string) {
		// From 550 on the daemon may still say FAULT of a server that is about to end.
		says(t, h.Prolog(t.Context(), env()), "start server of user 1000: it has ")
		must.Equal(t, read(t, h.Dir.running(7)).MPS, false, "the job is sent to it")
		var out bytes.Buffer
		says(t, h.TaskProlog(&out, env()), "the job shares the GPU without")
		must.Equal(t, strings.Contains(out.String(), "CUDA_MPS_"), false, out.String())
		must.OK(t, h.Epilog(t.Context(), env()))
	})
}

// Drivers before 555 know no -multiuser-server: their daemon serves one user after the other, and the hooks say so.
func TestOwnDaemonForAllUsers(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, driver string) {
		h.MPS.Multiuser = true
		says(t, h.Prolog(t.Context(), env()), map[bool]string{false: "knows no -multiuser-server"}[driver >= "555"])
		must.Equal(t, h.MPS.multiuser(0), driver >= "555")
		must.Equal(t, read(t, h.Dir.running(7)).MPS, true)
		must.OK(t, h.Epilog(t.Context(), env()))
	})
}

// A sharer's user can write to no file of the daemon's folders, and so can't fill what they are on; what connections
// have the daemon log takes bounded room.
func TestOwnDaemonsFilesAreClosed(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, _ string) {
		must.OK(t, h.Prolog(t.Context(), env()))
		for _, dir := range []string{h.MPS.Pipe(0), h.MPS.log(0)} {
			for _, e := range must.Get(os.ReadDir(dir))(t) {
				if info := must.Get(e.Info())(t); info.Mode().IsRegular() && info.Mode().Perm()&0o022 != 0 {
					t.Errorf("%s has mode %v", e.Name(), info.Mode())
				}
			}
		}
		log := filepath.Join(h.MPS.log(0), controlLog)
		grow := func() {
			f := must.Get(os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0))(t)
			must.Get(f.Write(bytes.Repeat([]byte("a line of a connection\n"), mostLog/10)))(t)
			must.OK(t, f.Close())
		}
		room := func() int64 { return must.Get(os.Stat(log))(t).Sys().(*syscall.Stat_t).Blocks * 512 }
		for range 2 {
			grow()
			must.Equal(t, room() > mostLog, true)
			must.OK(t, h.Dir.BoundLogs())
			must.Equal(t, room() <= 2*keptLog, true, "%d bytes are taken", room())
		}
		// What comes afterwards is read.
		server := must.Get(h.MPS.servers(t.Context(), 0))(t)[0]
		must.OK(t, syscall.Kill(server, syscall.SIGKILL))
		until(t, "the server's end", func() bool {
			text, _ := h.MPS.readLog(0, controlLog, 0)
			return strings.Contains(text, "exited with status")
		})
		says(t, h.Epilog(t.Context(), env()), "lost under jobs 7")
	})
}

// A user who isn't served can have a thousand processes that look like servers: no hook waits for them or ends one.
func TestProcessesCalledLikeServers(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, _ string) {
		program := filepath.Join(filepath.Dir(h.MPS.Control), "others", serverName)
		must.OK(t, os.Mkdir(filepath.Dir(program), 0o755),
			os.WriteFile(program, must.Get(os.ReadFile("/bin/sleep"))(t), 0o755))
		var pids []int
		for range 50 {
			cmd := exec.Command(program, "1000")
			cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + h.MPS.Pipe(0)}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1001, Gid: 1001}}
			must.OK(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			pids = append(pids, cmd.Process.Pid)
		}
		must.OK(t, h.Prolog(t.Context(), env()), h.Epilog(t.Context(), env()))
		for _, pid := range pids {
			must.Equal(t, started("", pid) != 0, true, "a process is there")
		}
	})
}

// One client that connects and says nothing stops a daemon for all users. The next job's prolog doesn't wait for it to
// the hook's end: the job goes without.
func TestASilentClientOfADaemonForAllUsers(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, driver string) {
		if driver < "555" {
			t.Skip("it has no daemon for all users")
		}
		h.MPS.Multiuser = true
		must.OK(t, h.Prolog(t.Context(), env()))
		silent := must.Get(net.Dial("unixpacket", filepath.Join(h.MPS.Pipe(0), "control")))(t)
		defer silent.Close()
		h.MPS.Answer = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		says(t, h.Prolog(ctx, env("SLURM_JOB_ID", "8", "SLURM_JOB_UID", "1001")), "left to the jobs that use it")
		must.OK(t, ctx.Err())
		must.Equal(t, read(t, h.Dir.running(8)).MPS, false)
		must.OK(t, silent.Close())
		h.MPS.Answer = time.Minute
		must.OK(t, h.Prolog(ctx, env("SLURM_JOB_ID", "9", "SLURM_JOB_UID", "1001")))
		must.Equal(t, read(t, h.Dir.running(9)).MPS, true)
	})
}

// Who empties run_dir under a sharer leaves its daemon and server to the job's epilog.
func TestOwnDaemonWithoutItsFolder(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, _ string) {
		must.OK(t, h.Prolog(t.Context(), env()))
		processes := h.MPS.running(0, controlName, serverName)
		must.Equal(t, len(processes), 2)
		must.OK(t, os.RemoveAll(h.Dir.Jobs()), os.RemoveAll(h.Dir.gpu(0)))
		says(t, h.Epilog(t.Context(), env()), "of the daemon's processes were killed") // the server may end with its daemon
		for _, pid := range processes {
			until(t, "a process's end", func() bool { return started("", pid) == 0 })
		}
	})
}

// Of a daemon that has been killed the socket stays, and a pid file that says what any user has written.
func TestOwnDaemonIsKilled(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, _ string) {
		must.OK(t, h.Prolog(t.Context(), env()))
		must.OK(t, syscall.Kill(daemonPID(t, h), syscall.SIGKILL))
		until(t, "the daemon's end", func() bool { return !h.MPS.present(0) })
		must.Get(os.Stat(filepath.Join(h.MPS.Pipe(0), "control")))(t)
		must.OK(t, os.WriteFile(filepath.Join(h.MPS.Pipe(0), controlName+".pid"), []byte("1\n"), 0o666))
		says(t, h.TaskProlog(new(bytes.Buffer), env()), "no MPS daemon")
		_ = h.Epilog(t.Context(), env()) // the stand-in has gone with its daemon
		must.Equal(t, h.MPS.running(0, controlName, serverName), nil, "what is left")
	})
}
