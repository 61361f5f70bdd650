// Package mps is the simulated GPU's Multi-Process Service: a control daemon that answers as
// nvidia-cuda-mps-control, the server process that it starts, and the client's side, which
// applications call.
//
// It keeps the rules of NVIDIA's manual: a pipe directory with a control socket, a server per user
// started when that user's first client arrives, one user's server at a time (a client of another
// user waits until the present server's clients have gone; only with -multiuser-server, from Volta
// on, do users share one), 16 clients at most before Volta, and faults that reach every client of a
// server. The sockets are the simulator's own: no real CUDA program can talk to it.
//
// A client stays connected to the daemon, which knows who is there, and to the server, whose death
// ends that connection. All sockets carry lines of text.
//
//	client ─── connects ──► daemon: welcome PID UUIDS | error CODE; the client may say fault
//	client ─── connects ──► server: PID
//	daemon ── exit, fault ─► server: ready
package mps

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// CUDA's environment variables for MPS.
const (
	PipeEnv     = "CUDA_MPS_PIPE_DIRECTORY"
	LogEnv      = "CUDA_MPS_LOG_DIRECTORY"
	VisibleEnv  = "CUDA_VISIBLE_DEVICES"
	ThreadsEnv  = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	MemLimitEnv = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

const (
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
	controlSock = "control"
	privSock    = "control_privileged"
	serverSock  = "server"
	pidFile     = "nvidia-cuda-mps-control.pid"
)

// CUDA's error codes that MPS can cause.
const (
	CodeLaunchFailure    = 719 // cudaErrorLaunchFailure
	CodeConnectionFailed = 805 // cudaErrorMpsConnectionFailed
)

// Error is what CUDA reports to an MPS client.
type Error struct {
	Code int
	Text string
}

// Error returns the message as CUDA words it.
func (e *Error) Error() string { return e.Text }

func failure(code int) *Error {
	texts := map[int]string{
		CodeLaunchFailure:    "unspecified launch failure (cudaErrorLaunchFailure)",
		CodeConnectionFailed: "MPS client failed to connect to the MPS control daemon or the MPS server (cudaErrorMpsConnectionFailed)",
	}
	return &Error{code, texts[code]}
}

// stageEnv marks the daemon that another process starts and waits for; descriptor 3 leads there.
const stageEnv = "GPUSIM_MPS_STAGE"

// Main is the program under its NVIDIA names; it returns the exit status. ok is
// false when args[0] is neither of them.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) (status int, ok bool) {
	var err error
	switch filepath.Base(args[0]) {
	case serverName:
		err = runServer()
	case controlName:
		err = control(args[1:], stdin, stdout, stderr)
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1, true
	}
	return 0, true
}

func control(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet(controlName, flag.ContinueOnError)
	f.SetOutput(stderr)
	background := f.Bool("d", false, "start the control daemon in the background")
	foreground := f.Bool("f", false, "start the control daemon in the foreground")
	multiuser := f.Bool("multiuser-server", false, "one server for all users (Volta and later)")
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case *background:
		return spawn(*multiuser)
	case !*foreground:
		return ask(stdin, stdout)
	}
	rename(controlName)
	starter := io.Discard
	if os.Getenv(stageEnv) != "" {
		_ = os.Unsetenv(stageEnv)
		unix.CloseOnExec(3)
		w := os.NewFile(3, "starter")
		defer w.Close()
		starter = w
	}
	err := runDaemon(*multiuser, func() {
		_, _ = io.WriteString(starter, "ready")
		if c, ok := starter.(io.Closer); ok {
			_ = c.Close()
		}
	})
	if err != nil {
		_, _ = io.WriteString(starter, err.Error())
	}
	return err
}

// rename gives the process its name in ps and top: it was started through
// /proc/self/exe.
func rename(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// errNoControl is what the control program says when no daemon answers it.
var errNoControl = errors.New("Cannot find MPS control daemon process") //nolint:revive,staticcheck // the real program's words

// ask sends the lines of standard input to the daemon and prints its answers.
func ask(stdin io.Reader, stdout io.Writer) error {
	c, err := dial(pipeDir(os.Getenv), privSock)
	if err != nil {
		return errNoControl
	}
	defer c.Close()
	answers := bufio.NewReader(c)
	in := bufio.NewScanner(stdin)
	for in.Scan() {
		if _, err := fmt.Fprintln(c, in.Text()); err != nil {
			return errNoControl
		}
		line, err := answers.ReadString('\n')
		out, uerr := strconv.Unquote(strings.TrimSpace(line))
		if errors.Join(err, uerr) != nil {
			// After quit the daemon is gone, as it should be.
			if strings.HasPrefix(strings.TrimSpace(in.Text()), "quit") {
				return nil
			}
			return errNoControl
		}
		fmt.Fprint(stdout, out)
	}
	return in.Err()
}

// spawn starts the daemon in a session of its own and returns when it answers,
// or with its reason not to.
func spawn(multiuser bool) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	// A prolog's descriptors would otherwise stay open for the daemon's whole life.
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	cmd := exec.Command("/proc/self/exe", "-f", "-multiuser-server="+strconv.FormatBool(multiuser))
	cmd.Args[0] = controlName
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), stageEnv+"=daemon"), []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		return err
	}
	word, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if s := string(word); s != "ready" {
		return errors.Join(errors.New(s), cmd.Wait())
	}
	return cmd.Process.Release()
}

// pipeDir is the pipe directory of an environment.
func pipeDir(getenv func(string) string) string {
	if d := getenv(PipeEnv); d != "" {
		return filepath.Clean(d)
	}
	return "/tmp/nvidia-mps"
}

// dial connects to a socket of the pipe directory.
func dial(dir, name string) (*net.UnixConn, error) {
	path, done, err := shorten(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
}

// listen makes a socket there, in the place of one that a killed daemon left.
func listen(dir, name string, mode os.FileMode) (*net.UnixListener, error) {
	file := filepath.Join(dir, name)
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	path, done, err := shorten(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the daemon cleans up itself
	return l, os.Chmod(file, mode)
}

// shorten makes a path fit into a socket's address, which holds 107 bytes: by the directory's descriptor.
func shorten(dir, name string) (string, func(), error) {
	if path := filepath.Join(dir, name); len(path) <= 107 {
		return path, func() {}, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), func() { _ = unix.Close(fd) }, nil
}

// peer returns the process at the other end, as the kernel knows it.
func peer(c *net.UnixConn) (pid, uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid, uid = int(cred.Pid), int(cred.Uid)
		}
	})
	return pid, uid, errors.Join(err, cerr)
}
