package nvidia

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ServerEnv, in the control daemon's environment, says how the stand-in for the MPS server behaves.
const (
	ServerEnv = "STANDIN_SERVER"
	Ready     = "ready"  // it reports to the control daemon that it is ready, and serves clients
	Starts    = "starts" // it sleeps, and never becomes ready
	// Fails is the end of a server without a GPU: it reports a fatal exception and exits with 1.
	Fails = "fails"
	// DriverEnv is the driver's branch.
	DriverEnv = "STANDIN_DRIVER"
)

const serverName = "nvidia-cuda-mps-server"

// StandIn makes a test's program the MPS server if NVIDIA's control daemon has started the program under the server's
// name; otherwise it returns. TestMain calls it first. NVIDIA's server needs a GPU; the stand-in sends the messages
// that NVIDIA's server was seen to send to the control daemon, and computes nothing.
func StandIn() {
	if filepath.Base(os.Args[0]) == serverName {
		os.Exit(server())
	}
}

// sleeps is a folder with a server's name for sleep(1): a process is known by its program's file name, too.
const sleeps = "sleeps"

// Bin makes a folder with the stand-in, for the control daemon's PATH.
func Bin(dir string) (string, error) {
	bin := filepath.Join(dir, "bin")
	return bin, errors.Join(os.MkdirAll(filepath.Join(bin, sleeps), 0o755), Self(filepath.Join(bin, serverName)),
		os.Symlink("/bin/sleep", filepath.Join(bin, sleeps, serverName)))
}

// Self puts this program at a path that other users can run. install(1) makes the copy: a file that this process has
// open for writing could be inherited by a child that is being forked, and couldn't be run then ("text file busy").
func Self(path string) error {
	self, err := os.Executable()
	if err == nil && os.Link(self, path) != nil {
		err = exec.Command("install", self, path).Run()
	}
	return err
}

// Messages between the control daemon and its peers on the SOCK_SEQPACKET socket `control`: the daemon's "OUTBHELL",
// the peer's "OUTBCRED" with its credentials, and then words of 4 bytes.
const (
	hello, credentials, descriptor = "OUTBHELL\x00", "OUTBCRED\x00", "OUTBCUFD\x00"

	iAmServer, iAmClient, iHaveFailed = 1, 2, 10

	shutDown, newClient, workers, clientList, terminate, status = 1, 2, 5, 6, 13, 17
)

// dial connects to the control daemon as one of its peers.
func dial(pipe string, as uint32) (*net.UnixConn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(pipe, "control"), Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	said := make([]byte, 64)
	if n, err := c.Read(said); err != nil || string(said[:n]) != hello {
		return nil, fmt.Errorf("the control daemon says %q: %w", said[:n], err)
	}
	me := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())})
	_, _, err = c.WriteMsgUnix([]byte(credentials), me, nil)
	return c, errors.Join(err, send(c, as))
}

func send(w io.Writer, words ...uint32) error {
	for _, word := range words {
		if _, err := w.Write(binary.LittleEndian.AppendUint32(nil, word)); err != nil {
			return err
		}
	}
	return nil
}

// receive returns the next message, a word or a file descriptor.
func receive(c *net.UnixConn) (word uint32, fd *os.File, err error) {
	body, rights := make([]byte, 64), make([]byte, 64)
	n, m, _, _, err := c.ReadMsgUnix(body, rights)
	switch {
	case err != nil:
		return 0, nil, err
	case string(body[:n]) == descriptor:
		cmsgs, err := syscall.ParseSocketControlMessage(rights[:m])
		if err != nil || len(cmsgs) != 1 {
			return 0, nil, fmt.Errorf("no descriptor: %w", err)
		}
		fds, err := syscall.ParseUnixRights(&cmsgs[0])
		if err != nil || len(fds) != 1 {
			return 0, nil, fmt.Errorf("no descriptor: %w", err)
		}
		return 0, os.NewFile(uintptr(fds[0]), "peer"), nil
	case n == 4:
		return binary.LittleEndian.Uint32(body), nil, nil
	}
	return receive(c) // a setting: thread percentage and memory limits are 8 bytes each
}

// served are the stand-in's clients.
type served struct {
	sync.Mutex
	running sync.WaitGroup
	n       int                 // connected clients, also before they have sent their pid
	fds     map[uint32]*os.File // connections of the clients that have sent their pid, by pid
	fault   bool
}

func server() int {
	pipe := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	switch os.Getenv(ServerEnv) {
	case Ready:
	case Fails:
		if c, err := dial(pipe, iHaveFailed); err == nil {
			defer c.Close()
		}
		return 1
	default:
		// sleep(1) ends by a SIGSEGV; Go's runtime would exit instead.
		self, err := os.Executable()
		if err == nil {
			err = syscall.Exec(filepath.Join(filepath.Dir(self), sleeps, serverName), []string{serverName, "3600"}, os.Environ())
		}
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c, err := dial(pipe, iAmServer)
	if err != nil {
		return 2
	}
	all := &served{fds: map[uint32]*os.File{}}
	err = send(c, 0)
	for err == nil {
		var word uint32
		var end bool
		if word, _, err = receive(c); err == nil {
			end, err = all.obey(c, word)
		}
		if end {
			return 0
		}
	}
	// The daemon has gone, or (up to 535) waits for the server's end, which comes with the last client's end.
	all.running.Wait()
	return 0
}

// obey carries out a message of the daemon, and reports whether the server has to end.
func (a *served) obey(c *net.UnixConn, word uint32) (end bool, err error) {
	a.Lock()
	defer a.Unlock()
	switch word {
	case shutDown: // a server with clients ends later, with the last one
		return a.n == 0, nil
	case newClient:
		_, fd, err := receive(c)
		if err == nil {
			a.n++
			a.running.Go(func() { a.serve(fd) })
		}
		return false, err
	case workers:
		// From 550 on the daemon waits for the number of clients, and for the end of a server without clients. Up to 535
		// it waits for no answer, and ends a server by another word.
		if os.Getenv(DriverEnv) >= "550" {
			return a.n == 0, send(c, uint32(a.n))
		}
	case clientList:
		return false, send(c, append([]uint32{uint32(len(a.fds))}, slices.Sorted(maps.Keys(a.fds))...)...)
	case terminate: // closes a client's connection; the answer is 0 if the pid is a client's
		pid, _, err := receive(c)
		f := a.fds[pid]
		return false, errors.Join(err, send(c, truth(f == nil || f.Close() != nil)))
	case status:
		return false, send(c, truth(!a.fault))
	}
	return false, nil
}

func truth(is bool) uint32 { return map[bool]uint32{true: 1}[is] }

// serve reads a client's messages, its pid and its faults, until the client closes the connection.
func (a *served) serve(f *os.File) {
	defer f.Close()
	var pid uint32
	for said := make([]byte, 4); ; {
		n, err := f.Read(said)
		a.Lock()
		switch word := binary.LittleEndian.Uint32(said); {
		case err != nil || n < 4:
			delete(a.fds, pid)
			a.n--
			a.fault = a.fault && len(a.fds) > 0
			a.Unlock()
			return
		case word == iHaveFailed:
			a.fault = true
		default:
			pid = word
			a.fds[pid] = f
			_ = send(f, 0) // it is in
		}
		a.Unlock()
	}
}

// Client is a CUDA program's connection to its MPS server, with the messages that the control daemon learns of.
type Client struct{ server *os.File }

// Connect asks the control daemon of a pipe directory for a server, and waits for it.
func Connect(pipe string) (*Client, error) {
	c, err := dial(pipe, iAmClient)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_, s, err := receive(c)
	if err != nil {
		return nil, err
	}
	err = errors.Join(send(c, 0), send(s, uint32(os.Getpid())))
	_, rerr := s.Read(make([]byte, 4))
	return &Client{server: s}, errors.Join(err, rerr)
}

// Fault reports that a kernel of this client has faulted.
func (c *Client) Fault() error { return send(c.server, iHaveFailed) }
