package prolog

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
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
		if server.PID == 0 || owner("", server.PID) != 1000 || !read(t, h.Dir.running(7)).MPS {
			t.Errorf("server %+v of user %d", server, owner("", server.PID))
		}
		ready := must.Get(h.MPS.ready(t.Context(), 0, server.PID))(t)
		if !ready {
			t.Error("the job starts before its server is ready")
		}
		var out bytes.Buffer
		must.OK(t, h.TaskProlog(&out, env()))
		if !strings.Contains(out.String(), "CUDA_MPS_PIPE_DIRECTORY=") {
			t.Errorf("variables %q", out.String())
		}
		must.OK(t, syscall.Kill(server.PID, syscall.SIGKILL))
		until(t, "the server's end", func() bool { return started("", server.PID) != server.Started })
		says(t, h.watch(t.Context()), "lost under jobs 7")
		must.OK(t, h.Epilog(t.Context(), env()))
		if left := h.MPS.running(0, controlName, serverName); len(left) > 0 || h.MPS.present(0) {
			t.Errorf("left: %v", left)
		}
	})
}

// A server in the daemon's list may still initialise. A job isn't sent to it.
func TestOwnServerIsNotReady(t *testing.T) {
	own(t, nvidia.Starts, func(t *testing.T, h *Hook, _ string) {
		must.OK(t, h.MPS.start(t.Context(), 0, 1000))
		h.MPS.Answer = 500 * time.Millisecond
		if err := h.MPS.serve(t.Context(), 0, 1000); err == nil {
			t.Error("a job is sent to a server that initialises")
		}
		h.MPS.Answer = time.Minute
		if list := must.Get(h.MPS.servers(t.Context(), 0))(t); len(list) != 1 {
			t.Errorf("servers %v", list)
		}
	})
}

func TestOwnServerFails(t *testing.T) {
	own(t, nvidia.Fails, func(t *testing.T, h *Hook, _ string) {
		// From 550 on the daemon may still say FAULT of a server that is about to end.
		says(t, h.Prolog(t.Context(), env()), "start server of user 1000: it has ")
		if read(t, h.Dir.running(7)).MPS {
			t.Error("the job is sent to it")
		}
		must.OK(t, h.Epilog(t.Context(), env()))
	})
}

// Drivers before 555 know no -multiuser-server: their daemon serves one user after the other, and the hooks say so.
func TestOwnDaemonForAllUsers(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, driver string) {
		h.MPS.Multiuser = true
		err := h.Prolog(t.Context(), env())
		if driver >= "555" {
			must.OK(t, err)
		} else {
			says(t, err, "knows no -multiuser-server")
		}
		must.Equal(t, h.MPS.multiuser(0), driver >= "555")
		if !read(t, h.Dir.running(7)).MPS {
			t.Error("no MPS")
		}
		must.OK(t, h.Epilog(t.Context(), env()))
	})
}

// Of a daemon that has been killed the socket stays, and a pid file that says what any user has written.
func TestOwnDaemonIsKilled(t *testing.T) {
	own(t, nvidia.Ready, func(t *testing.T, h *Hook, _ string) {
		must.OK(t, h.Prolog(t.Context(), env()))
		must.OK(t, syscall.Kill(daemonPID(t, h), syscall.SIGKILL))
		until(t, "the daemon's end", func() bool { return !h.MPS.present(0) })
		files := must.Get(os.ReadDir(h.MPS.Pipe(0)))(t)
		if !slices.ContainsFunc(files, func(e os.DirEntry) bool { return e.Name() == "control" }) {
			t.Errorf("the socket has gone: %v", files)
		}
		must.OK(t, os.WriteFile(filepath.Join(h.MPS.Pipe(0), controlName+".pid"), []byte("1\n"), 0o666))
		says(t, h.TaskProlog(new(bytes.Buffer), env()), "no MPS daemon")
		_ = h.Epilog(t.Context(), env()) // the stand-in has gone with its daemon
		if left := h.MPS.running(0, controlName, serverName); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}
