package prolog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// grace is what a hook gets beyond its deadline to clean up after itself.
const grace = 150 * time.Millisecond

// ErrKilled says that a signal ended the process that did a hook's work. The hook can be called again.
var ErrKilled = errors.New("killed")

// Child runs a program under a deadline that nothing can stretch and returns what it printed. A process that waits for
// a dead disk can't end, not even by SIGKILL; its parent can leave it behind. Its errors are for a log: what the
// program printed counts even if it failed.
func Child(deadline time.Duration, program string, args ...string) ([]byte, error) {
	var out, stderr limited
	cmd := exec.Command(program, args...)
	cmd.Args[0] = "slurmbridge-hook"
	cmd.Stdout, cmd.Stderr = &out, &stderr
	cmd.WaitDelay = grace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if errors.As(err, &exit) && !exit.Exited() {
			return nil, fmt.Errorf("%w: %w", ErrKilled, err)
		}
		if text := bytes.TrimSpace(stderr.buf.Bytes()); err != nil && len(text) > 0 {
			err = errors.New(string(text))
		}
		return out.buf.Bytes(), err
	case <-time.After(deadline + 2*grace):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return nil, errors.New("not done after " + deadline.String() + "; left behind")
	}
}

// limited keeps the first 16 KiB that are written to it. Reading what it holds is for after the writer has ended.
type limited struct{ buf bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := 16<<10 - l.buf.Len(); room > 0 {
		l.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// Syslog is where a hook's troubles go: its own output is Slurm's. It doesn't wait
// for a log that hangs, and says nothing where there is none.
func Syslog(message string) {
	conn, err := net.Dial("unixgram", "/dev/log")
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	// <28> is facility daemon, severity warning.
	_, _ = io.WriteString(conn, "<28>slurmbridge-hook: "+strings.ReplaceAll(message, "\n", "; "))
}
