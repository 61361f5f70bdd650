package prolog

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// grace is the extra time in which a hook cleans up after its deadline.
const grace = 150 * time.Millisecond

// ErrKilled means that a signal ended the process that did the hook's work. The hook can be called again.
var ErrKilled = errors.New("killed")

// Child runs a program under a strict deadline and returns what it printed. A process that waits for a dead disk can't
// be ended, even by SIGKILL, but its parent can leave it behind. The error is for a log: the output counts even if the
// program failed.
func Child(deadline time.Duration, program string, args ...string) ([]byte, error) {
	out, err := inMemory("")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	stderr, err := inMemory("")
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	cmd := exec.Command(program, args...)
	cmd.Args[0] = "slurmbridge-hook"
	cmd.Stdout = out
	cmd.Stderr = stderr
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
		if text := strings.TrimSpace(printed(stderr)); err != nil && text != "" {
			err = errors.New(text)
		}
		return []byte(printed(out)), err
	case <-time.After(deadline + 2*grace):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return nil, errors.New("not done after " + deadline.String() + "; left behind")
	}
}

// inMemory creates an in-memory file for a program's input or output. A pipe would have to be read until all writers
// close it, which a daemon started by the program may never do; giving up after a while could lose output on a busy
// node.
func inMemory(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("slurmbridge-hook", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, where no administrator can ask for the seal (vm.memfd_noexec)
		fd, err = unix.MemfdCreate("slurmbridge-hook", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memory") //nolint:gosec // a descriptor
	_, err = f.WriteAt([]byte(text), 0)
	return f, err
}

// printed returns what a program wrote to a file, at most 16 KiB.
func printed(f *os.File) string {
	text, _ := io.ReadAll(io.NewSectionReader(f, 0, 16<<10)) // memory doesn't fail
	return string(text)
}

// Syslog logs a hook's error, because the hook's own output goes to Slurm. It doesn't wait for a log that hangs, and
// does nothing without a log.
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
