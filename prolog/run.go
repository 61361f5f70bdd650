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

// grace is what a hook gets beyond its deadline to clean up after itself.
const grace = 150 * time.Millisecond

// ErrKilled says that a signal ended the process that did a hook's work. The hook can be called again.
var ErrKilled = errors.New("killed")

// Child runs a program under a deadline that nothing can stretch and returns what it printed. A process that waits for
// a dead disk can't end, not even by SIGKILL; its parent can leave it behind. Its errors are for a log: what the
// program printed counts even if it failed.
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
	cmd.Stdout, cmd.Stderr = out, stderr
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

// inMemory makes a file in memory for what a program reads or prints. Of a pipe this process would have to read what is
// left in it within some time after the program's end, since the program may have started another one that keeps the
// pipe open; on a busy node the time may pass before this process is woken. A file has it all.
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

// printed is what a program has written to a file, 16 KiB at most.
func printed(f *os.File) string {
	text, _ := io.ReadAll(io.NewSectionReader(f, 0, 16<<10)) // memory doesn't fail
	return string(text)
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
