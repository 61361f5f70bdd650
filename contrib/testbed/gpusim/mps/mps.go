// Package mps is the simulated GPU's Multi-Process Service: a control daemon that answers as nvidia-cuda-mps-control,
// the server process that it starts, and the client's side, which applications call.
//
// It keeps the rules of NVIDIA's manual: a pipe directory with a control socket, a server per user started when that
// user's first client arrives, one user's server at a time (a client of another user waits until the present server's
// clients have gone; only with -multiuser-server, from Volta on, do users share one), 16 clients at most before Volta,
// and faults that reach every client of a server. What the daemon answers, logs and leaves behind is what NVIDIA's own
// of the machine's driver was seen to (contrib/testbed/nvidia holds the transcripts). What goes over its socket is the
// simulator's own: no real CUDA program can talk to it.
//
// A client stays connected to the daemon for as long as it lives; the socket carries lines of text.
// Server and clients have their places on the GPUs in the state file: a server that dies, and a
// kernel that faults, ends its clients there.
//
//	client ──────── client, fault ─► daemon: welcome PID UUIDS | refused; faulted
//	control program ─── COMMAND ───► daemon: its answer, and the end of the connection
//	daemon ──── exit | fault ──────► server: ready | why not
package mps

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// CUDA's environment variables for MPS.
const (
	PipeEnv     = "CUDA_MPS_PIPE_DIRECTORY"
	LogEnv      = "CUDA_MPS_LOG_DIRECTORY"
	ThreadsEnv  = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	MemLimitEnv = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

// InitEnv is how long a server takes to initialise its GPUs, as a driver without persistence mode has it take; default
// 0.
const InitEnv = "GPUSIM_MPS_INIT"

const (
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
	controlSock = "control"
	// multiuserFlag has one server serve all users (Volta and later).
	multiuserFlag = "-multiuser-server"
	pidFile       = controlName + ".pid"
	network       = "unixpacket" // messages keep their bounds: SOCK_SEQPACKET
)

// Main is the program under its NVIDIA names; it returns the exit status. ok is false when args[0] is neither of them.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) (status int, ok bool) {
	var err error
	switch filepath.Base(args[0]) {
	case serverName:
		err = runServer(stdin, stdout)
		stderr = stdout // the daemon reads it
	case controlName:
		err = control(args[1:], stdin, stdout)
	default:
		return 0, false
	}
	if err == nil {
		return 0, true
	}
	if err.Error() != "" {
		fmt.Fprintln(stderr, err)
	}
	return 1, true
}

func control(args []string, stdin io.Reader, stdout io.Writer) error {
	st, err := gpusim.Open("")
	if err != nil {
		return err
	}
	defer st.Close()
	known := []string{"-d", "-f"} // start the daemon, in the background or the foreground
	if st.Driver() >= 555 {
		known = append(known, multiuserFlag)
	}
	has := func(flag string) bool { return slices.Contains(args, flag) }
	// What has a flag that the driver doesn't know is taken for a call without any.
	if slices.ContainsFunc(args, func(a string) bool { return !slices.Contains(known, a) }) {
		c, err := dial(pipeDir(os.Getenv))
		if err != nil {
			return errNoControl
		}
		args = nil
		_ = c.Close()
	}
	switch {
	case has("-d"):
		return spawn(slices.DeleteFunc(args, func(a string) bool { return a == "-d" }))
	case has("-f"):
		rename(controlName)
		return runDaemon(st, has(multiuserFlag), func() { fmt.Fprintln(stdout, "ready") })
	}
	return ask(stdin, stdout)
}

// rename gives the process its name in ps and top: it was started through /proc/self/exe.
func rename(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// errNoControl is what the control program says when no daemon answers it.
var errNoControl = errors.New("Cannot find MPS control daemon process") //nolint:revive,staticcheck // the real program's words

// ask sends the lines of standard input to the daemon, each on a connection of its own, and prints the answers.
func ask(stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewScanner(stdin)
	for in.Scan() {
		c, err := dial(pipeDir(os.Getenv))
		if err != nil {
			return errNoControl
		}
		defer c.Close()
		_, err = fmt.Fprintln(c, in.Text())
		if _, rerr := io.Copy(stdout, c); errors.Join(err, rerr) != nil {
			return errNoControl
		}
	}
	return in.Err()
}

// spawn starts the daemon in a session of its own and returns when it answers, or with its reason not to.
func spawn(flags []string) error {
	// A prolog's descriptors would otherwise stay open for the daemon's whole life.
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{controlName, "-f"}, flags...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	cmd.Stderr = cmd.Stdout
	if err := errors.Join(err, cmd.Start()); err != nil {
		return err
	}
	word, _ := bufio.NewReader(out).ReadString('\n')
	if word != "ready\n" {
		_ = cmd.Wait() // its reason is the word
		return errors.New(strings.TrimSpace(word))
	}
	return nil
}

// runServer is the server's process: it takes its place on each of its GPUs until the daemon ends it.
func runServer(stdin io.Reader, stdout io.Writer) error {
	rename(serverName)
	st, err := gpusim.Open("")
	if err != nil {
		return err
	}
	defer st.Close()
	// Started as if by a driver without persistence mode: the daemon's end doesn't shorten it.
	if init, err := time.ParseDuration(os.Getenv(InitEnv)); err == nil {
		time.Sleep(init)
	}
	all := st.Visible(nil)
	if len(all) == 0 {
		return errors.New("no CUDA-capable device is detected")
	}
	for _, d := range all {
		s, err := d.ClaimServer(gpusim.Claimant{UID: os.Getuid(), Instance: d.Instance})
		if err != nil {
			return fmt.Errorf("GPU %s: %w", d.Name(), err)
		}
		defer func() { _ = s.Release() }()
	}
	// Clients of other users map it where one server serves them all.
	defer forget(os.Getpid())
	if err := os.WriteFile(fmt.Sprintf(segment, fmt.Sprintf("%x", os.Getuid()), os.Getpid()), nil, 0o666); err != nil {
		return fmt.Errorf("share memory: %w", err)
	}
	fmt.Fprintln(stdout, "ready")
	word, err := bufio.NewReader(stdin).ReadString('\n')
	switch {
	case err != nil: // the daemon is gone; the present clients may finish
		for st.Clients(os.Getpid()) > 0 {
			time.Sleep(20 * time.Millisecond)
		}
	case word == "fault\n":
		return errors.New("fatal fault")
	}
	return nil
}

// segment is the name of a server's shared memory, as strace shows the real one's: cuda.shm.UID.PID.N. Server and
// clients meet there: a client with a /dev/shm of its own finds no server (NVIDIA's k8s-device-plugin, issue 647).
const segment = "/dev/shm/cuda.shm.%s.%x.1"

// segments are what there is of a server's shared memory.
func segments(server int) []string {
	found, _ := filepath.Glob(fmt.Sprintf(segment, "*", server))
	return found
}

// forget removes a server's shared memory.
func forget(server int) {
	for _, name := range segments(server) {
		_ = os.Remove(name)
	}
}

// What Connect answers.
var (
	// ErrNoDaemon: no control daemon answers at the pipe directory. A CUDA program then runs without MPS.
	ErrNoDaemon = errors.New("no MPS control daemon")
	// ErrRefused is CUDA's message to a client that gets no server.
	ErrRefused = errors.New("MPS client failed to connect to the MPS control daemon or the MPS server " +
		"(cudaErrorMpsConnectionFailed)")
)

// Client is a CUDA program's connection to its MPS server.
type Client struct {
	Server  int      // the server's pid
	Devices []string // UUIDs of the GPUs the server has, in its order

	daemon *net.UnixConn
}

// Connect connects to the MPS server through the control daemon of the pipe directory that getenv
// names, and waits until the daemon lets it in. It returns ErrNoDaemon, ErrRefused or ctx's error.
func Connect(ctx context.Context, getenv func(string) string) (*Client, error) {
	daemon, err := dial(pipeDir(getenv))
	if err != nil {
		return nil, ErrNoDaemon
	}
	defer context.AfterFunc(ctx, func() { _ = daemon.Close() })()
	c := &Client{daemon: daemon}
	// NVIDIA's own control daemon has another greeting, and serves no simulated client.
	var devices string
	n, _ := fmt.Sscanf(c.say("client"), "welcome %d %s\n", &c.Server, &devices)
	if n == 2 && (len(segments(c.Server)) > 0 || errors.Is(unix.Kill(c.Server, 0), unix.ESRCH)) { // or it has just ended
		c.Devices = strings.Split(devices, ",")
		return c, nil
	}
	_ = daemon.Close()
	return nil, cmp.Or(ctx.Err(), ErrRefused)
}

// say tells the daemon a word and returns the message that comes next; "" where the daemon is gone.
func (c *Client) say(word string) string {
	_, _ = fmt.Fprintln(c.daemon, word)
	answer := make([]byte, 1<<14)
	n, _ := c.daemon.Read(answer)
	return string(answer[:max(0, n)])
}

// Fault reports that a kernel of this client has faulted, and waits until the daemon knows.
func (c *Client) Fault() { c.say("fault") }

// Close leaves the server.
func (c *Client) Close() error { return c.daemon.Close() }

// pipeDir is the pipe directory of an environment.
func pipeDir(getenv func(string) string) string {
	return filepath.Clean(cmp.Or(getenv(PipeEnv), "/tmp/nvidia-mps"))
}

// dial connects to the daemon of a pipe directory.
func dial(dir string) (*net.UnixConn, error) {
	return net.DialUnix(network, nil, &net.UnixAddr{Name: filepath.Join(dir, controlSock), Net: network})
}
