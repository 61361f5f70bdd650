package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// privateEnv marks the program's second start, in a mount namespace of its own: the disk that is
// filled there disappears with it.
const privateEnv = "SOAK_PRIVATE"

// private starts this program again in a mount namespace of its own, and returns its exit
// status; again is false in the second start.
func private(ctx context.Context) (status int, again bool, err error) {
	if os.Getenv(privateEnv) != "" {
		return 0, false, nil
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it stops its daemons
	cmd.Env = append(os.Environ(), privateEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), true, nil
	}
	return 0, true, err
}

// diskMiB is the size of the disk that fills.
const diskMiB = 512

// wire is what agents reach the bridge through, and can be cut.
type wire struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newWire(to string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{listener: l, to: to, conns: map[net.Conn]bool{}}
	go w.serve()
	return w, nil
}

func (w *wire) serve() {
	for {
		conn, err := w.listener.Accept()
		if err != nil {
			return
		}
		go w.pass(conn)
	}
}

// pass carries one connection. While the wire is cut nothing comes through and nothing is
// refused: the other end hears nothing.
func (w *wire) pass(in net.Conn) {
	if !w.keep(in) {
		return
	}
	defer w.drop(in)
	out, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	if !w.keep(out) {
		return
	}
	defer w.drop(out)
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
	_, _ = io.Copy(in, out)
}

// keep notes a connection; while the wire is cut it stays open and unanswered.
func (w *wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
	return !w.cut
}

func (w *wire) drop(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	_ = c.Close()
}

// set cuts the wire or mends it; what hung on it breaks when it is mended.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	for c := range w.conns {
		_ = c.Close()
		delete(w.conns, c)
	}
}

// nodeOf is the node that a process of a hook or of MPS serves, "" = unknown.
func nodeOf(pid int, nodes int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	line, _ := os.ReadFile(dir + "/cmdline")
	vars, _ := os.ReadFile(dir + "/environ")
	text := strings.ReplaceAll(string(line)+"\x00"+string(vars)+"\x00", "\x00", "\n")
	for i := range nodes {
		name := slurmtest.NodeName(i)
		if strings.Contains(text, "SLURMD_NODENAME="+name+"\n") || strings.Contains(text, "-"+name+".yaml") ||
			strings.Contains(text, "/state-"+name+"\n") || i == 0 && strings.Contains(text, "/sim/state\n") {
			return name
		}
	}
	return ""
}

// wait sleeps, unless the context ends.
func wait(ctx context.Context, s float64) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(seconds(s)):
		return true
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
