// Package mps is the simulated GPU's Multi-Process Service: a control daemon
// that answers as nvidia-cuda-mps-control, the server processes it starts, and
// the client's side, which applications call.
//
// It keeps the rules of NVIDIA's manual: a pipe directory with a control socket,
// a server per user started when that user's first client arrives, one user's
// server at a time (a client of another user waits until the present server's
// clients have gone; only with -multiuser-server, from Volta on, do users share
// one), 16 clients at most before Volta, and faults that reach every client of a
// server. All sockets are the simulator's own: no real CUDA program can talk to
// it.
//
//	client ──hello──► control daemon ──the client's connection──► server
//	client ◄──────────────── welcome, fault, end of file ─────────┘
//
// The daemon hands the client's very connection to the server, so that a client
// sees its server die at once and no further sockets lie about.
package mps

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CUDA's environment variables for MPS.
const (
	PipeEnv      = "CUDA_MPS_PIPE_DIRECTORY"
	LogEnv       = "CUDA_MPS_LOG_DIRECTORY"
	VisibleEnv   = "CUDA_VISIBLE_DEVICES"
	ThreadsEnv   = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	MemLimitEnv  = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	defaultPipe  = "/tmp/nvidia-mps"
	defaultLog   = "/var/log/nvidia-mps"
	controlName  = "nvidia-cuda-mps-control"
	serverName   = "nvidia-cuda-mps-server"
	controlSock  = "control"
	privSock     = "control_privileged"
	lockFile     = "control_lock"
	pidFile      = "nvidia-cuda-mps-control.pid"
	maxLine      = 64 << 10
	startSeconds = 10
)

// CUDA's error codes that MPS can cause.
const (
	CodeLaunchFailure    = 719 // cudaErrorLaunchFailure
	CodeConnectionFailed = 805 // cudaErrorMpsConnectionFailed
	CodeClientTerminated = 810 // cudaErrorMpsClientTerminated
)

// Error is what CUDA reports to an MPS client.
type Error struct {
	Code int
	Text string
}

// Error returns the message as CUDA words it.
func (e *Error) Error() string { return e.Text }

// errorText is CUDA's text for a code.
func errorText(code int) string {
	switch code {
	case CodeLaunchFailure:
		return "unspecified launch failure (cudaErrorLaunchFailure)"
	case CodeConnectionFailed:
		return "MPS client failed to connect to the MPS control daemon or the MPS server (cudaErrorMpsConnectionFailed)"
	case CodeClientTerminated:
		return "MPS client has been terminated (cudaErrorMpsClientTerminated)"
	}
	return fmt.Sprintf("error %d", code)
}

// message is what goes over all of the simulator's MPS sockets, a JSON object a
// line.
type message struct {
	Op      string   `json:"op"`
	Line    string   `json:"line,omitempty"`    // ui: a command
	Out     string   `json:"out,omitempty"`     // ui: its answer
	PID     int      `json:"pid,omitempty"`     // the client's, or the server's in welcome
	Code    int      `json:"code,omitempty"`    // error
	Devices []string `json:"devices,omitempty"` // welcome: UUIDs of the server's GPUs, in order
}

// The operations.
const (
	opUI        = "ui"        // control program → daemon, and its answer
	opHello     = "hello"     // client → daemon
	opWelcome   = "welcome"   // server → client
	opError     = "error"     // daemon or server → client
	opFault     = "fault"     // client → server: my context is broken; server → daemon
	opReady     = "ready"     // server → daemon
	opClient    = "client"    // daemon → server, with the client's connection
	opJoined    = "joined"    // server → daemon: the client is here
	opGone      = "gone"      // server → daemon: a client left
	opRecovered = "recovered" // server → daemon: all clients of a fault have left
	opTerminate = "terminate" // daemon → server: end this client
	opExit      = "exit"      // daemon → server: end
)

func (m *message) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

func send(c *net.UnixConn, m message) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	_, err = c.Write(b)
	return err
}

// pipeDir is the pipe directory of an environment.
func pipeDir(getenv func(string) string) string {
	if d := getenv(PipeEnv); d != "" {
		return filepath.Clean(d)
	}
	return defaultPipe
}

func logDir(getenv func(string) string) string {
	if d := getenv(LogEnv); d != "" {
		return filepath.Clean(d)
	}
	return defaultLog
}

// dial connects to a socket of the pipe directory. Long paths work too: the
// socket is reached through the directory's descriptor (a socket's address holds
// 107 bytes).
func dial(dir, name string) (*net.UnixConn, error) {
	path, done, err := shorten(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
}

func listen(dir, name string) (*net.UnixListener, error) {
	path, done, err := shorten(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path may be gone by then; the daemon cleans up itself
	return l, nil
}

func shorten(dir, name string) (string, func(), error) {
	const longest = 107
	if path := filepath.Join(dir, name); len(path) <= longest {
		return path, func() {}, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), func() { _ = unix.Close(fd) }, nil
}

// peer returns the process at the other end, as the kernel knows it.
func peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, cerr)
}
