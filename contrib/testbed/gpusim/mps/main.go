package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageEnv marks the daemon process, as opposed to the program that starts it.
const stageEnv = "GPUSIM_MPS_STAGE"

const usage = `usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]
  -d                 start the control daemon in the background
  -f                 start the control daemon in the foreground
  -multiuser-server  one server for all users (Volta and later)
Without an option commands are read from standard input; "help" lists them.
`

// Main is the program under its NVIDIA names; it returns the exit status. ok is
// false when args[0] is neither of them.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) (status int, ok bool) {
	switch filepath.Base(args[0]) {
	case serverName:
		rename(serverName)
		if err := runServer(os.Getenv); err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", serverName, err)
			return 1, true
		}
		return 0, true
	case controlName:
		return control(args[1:], stdin, stdout, stderr), true
	}
	return 0, false
}

// rename gives the process its name in ps and top: it was started through
// /proc/self/exe.
func rename(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

func control(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var background, foreground, multiuser bool
	for _, a := range args {
		switch strings.TrimLeft(a, "-") {
		case "d":
			background = true
		case "f":
			foreground = true
		case "multiuser-server":
			multiuser = true
		default:
			fmt.Fprint(stderr, usage)
			return 1
		}
	}
	var err error
	switch {
	case os.Getenv(stageEnv) == "daemon":
		rename(controlName)
		return daemonStage(multiuser)
	case background:
		err = spawn(args)
	case foreground:
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
		defer stop()
		err = runDaemon(ctx, os.Getenv, multiuser, func() {})
	default:
		err = ask(stdin, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// errNoControl is what the control program says when no daemon answers it.
var errNoControl = errors.New("Cannot find MPS control daemon process") //nolint:revive,staticcheck // the real program's words

// ask sends the lines of standard input to the daemon and prints its answers.
func ask(stdin io.Reader, stdout io.Writer) error {
	c, err := dial(pipeDir(os.Getenv), privSock)
	if err != nil {
		return errNoControl
	}
	defer func() { _ = c.Close() }()
	r := bufio.NewReaderSize(c, maxLine)
	in := bufio.NewScanner(stdin)
	for in.Scan() {
		if err := send(c, message{Op: opUI, Line: in.Text()}); err != nil {
			return errNoControl
		}
		m, err := receive(r)
		if err != nil {
			// After quit the daemon is gone, as it should be.
			if strings.HasPrefix(strings.TrimSpace(in.Text()), "quit") {
				return nil
			}
			return errNoControl
		}
		fmt.Fprint(stdout, m.Out)
	}
	return in.Err()
}

// spawn starts the daemon in a session of its own and returns when it answers,
// or with its reason not to.
func spawn(args []string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	if err := closeOthersOnExec(); err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{controlName}, args...),
		Env: append(os.Environ(), stageEnv+"=daemon"), Dir: "/",
		Stdin: null, Stdout: null, Stderr: null, ExtraFiles: []*os.File{w},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	// Dir is /: what was relative to the caller's folder must stay what it was.
	for i, kv := range cmd.Env {
		for _, name := range []string{PipeEnv, LogEnv, "GPUSIM_STATE"} {
			if v, found := strings.CutPrefix(kv, name+"="); found && v != "" {
				if abs, err := filepath.Abs(v); err == nil {
					cmd.Env[i] = name + "=" + abs
				}
			}
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = w.Close()
	word, err := io.ReadAll(io.LimitReader(r, maxLine))
	if err != nil {
		return err
	}
	if s := string(word); s != "ready" {
		_ = cmd.Wait()
		if s == "" {
			s = "the control daemon did not start"
		}
		return errors.New(s)
	}
	return cmd.Process.Release()
}

// closeOthersOnExec keeps inherited descriptors from the daemon: a prolog's would otherwise stay
// open for the daemon's whole life.
func closeOthersOnExec() error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// daemonStage is the daemon's process; descriptor 3 leads to the program that
// started it.
func daemonStage(multiuser bool) int {
	_ = os.Unsetenv(stageEnv)
	w := os.NewFile(3, "starter")
	unix.CloseOnExec(3)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	err := runDaemon(ctx, os.Getenv, multiuser, func() {
		_, _ = io.WriteString(w, "ready")
		_ = w.Close()
	})
	if err != nil {
		_, _ = io.WriteString(w, err.Error())
		return 1
	}
	return 0
}
