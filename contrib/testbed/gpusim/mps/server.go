package mps

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// server is one nvidia-cuda-mps-server process.
type server struct {
	log     *logger
	control *net.UnixConn // to the daemon
	state   *gpusim.State
	slots   []*gpusim.Slot
	devices []string
	volta   bool // faults are survived

	clients map[*net.UnixConn]int // connection → pid
	faulted bool
	events  chan serverEvent
}

type serverEvent struct {
	msg   message
	conn  *net.UnixConn // the client's; nil: from the daemon
	taken *net.UnixConn // a client's connection the daemon handed over
	err   error
}

// runServer is the server process: descriptor 3 is the daemon's socket, 4 its log,
// which another user could not open.
func runServer(getenv func(string) string) error {
	f := os.NewFile(3, "control")
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return fmt.Errorf("the MPS server is started by %s: %w", controlName, err)
	}
	control, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("the MPS server is started by " + controlName)
	}
	s := &server{
		log:     newLog(os.NewFile(4, "log"), "Server"),
		control: control,
		clients: map[*net.UnixConn]int{},
		events:  make(chan serverEvent),
	}
	defer s.log.close()
	s.log.printf("Startup")
	if err := s.open(getenv); err != nil {
		s.log.printf("Server startup failed: %v", err)
		return err
	}
	defer s.close()
	go s.fromDaemon()
	if err := send(s.control, message{Op: opReady}); err != nil {
		return err
	}
	return s.serve()
}

// open takes the server's place on each of its GPUs.
func (s *server) open(getenv func(string) string) error {
	var err error
	if s.state, err = gpusim.Open(getenv(gpusim.StateEnv)); err != nil {
		return err
	}
	v, set := os.LookupEnv(VisibleEnv)
	all := s.state.UUIDs()
	for _, i := range gpusim.Visible(v, set, all) {
		d := s.state.Device(i)
		slot, err := d.ClaimServer(gpusim.Claimant{UID: os.Getuid()})
		if err != nil {
			return fmt.Errorf("GPU %s: %w", all[i], err)
		}
		s.slots = append(s.slots, slot)
		s.devices = append(s.devices, all[i])
		s.volta = !d.SameUser()
	}
	if len(s.slots) == 0 {
		return errors.New("no CUDA-capable device is detected")
	}
	return nil
}

func (s *server) close() {
	for _, slot := range s.slots {
		_ = slot.Release()
	}
	_ = s.state.Close()
}

// serve returns when the server's work is done: after nil it ends with status 0.
func (s *server) serve() error {
	orphan := false
	for e := range s.events {
		switch {
		case e.conn != nil && e.err != nil:
			s.leave(e.conn)
		case e.conn != nil && e.msg.Op == opFault:
			if err := s.fault(e.msg.PID); err != nil {
				return err
			}
		case e.conn != nil:
			// A client has nothing else to say.
		case e.err != nil:
			// The daemon is gone; the present clients may finish.
			orphan = true
		case e.msg.Op == opClient && e.taken != nil:
			s.join(e.taken, e.msg.PID)
		case e.msg.Op == opTerminate:
			s.terminate(e.msg.PID)
		case e.msg.Op == opExit:
			s.log.printf("Server shutdown")
			s.sendAll(CodeLaunchFailure)
			return nil
		}
		if s.faulted && len(s.clients) == 0 {
			s.faulted = false
			s.log.printf("Server recovered from the fault")
			_ = send(s.control, message{Op: opRecovered})
		}
		if orphan && len(s.clients) == 0 {
			return nil
		}
	}
	return nil
}

func (s *server) join(c *net.UnixConn, pid int) {
	s.clients[c] = pid
	s.log.printf("New Client %d connected", pid)
	// Before the daemon closes its end: a client that has joined has been welcomed.
	err := send(c, message{Op: opWelcome, PID: os.Getpid(), Devices: s.devices})
	_ = send(s.control, message{Op: opJoined, PID: pid})
	if err != nil {
		s.leave(c)
		return
	}
	go s.fromClient(c)
}

func (s *server) leave(c *net.UnixConn) {
	pid, there := s.clients[c]
	if !there {
		return
	}
	delete(s.clients, c)
	_ = c.Close()
	s.log.printf("Client %d disconnected", pid)
	_ = send(s.control, message{Op: opGone, PID: pid})
}

// fault is what a memory fault in one client's kernel does: all clients of the
// server lose their contexts. Before Volta the server ends with them.
func (s *server) fault(pid int) error {
	s.log.printf("Client %d: fatal fault detected, all clients are ended", pid)
	s.sendAll(CodeLaunchFailure)
	if !s.volta {
		_ = send(s.control, message{Op: opFault, PID: pid})
		return errors.New("fatal fault")
	}
	s.faulted = true
	return send(s.control, message{Op: opFault, PID: pid})
}

func (s *server) sendAll(code int) {
	for c := range s.clients {
		_ = send(c, message{Op: opError, Code: code})
	}
}

func (s *server) terminate(pid int) {
	for c, p := range s.clients {
		if p == pid {
			s.log.printf("Client %d terminated", pid)
			_ = send(c, message{Op: opError, Code: CodeClientTerminated})
		}
	}
}

// fromClient passes on what a client says, and that it left.
func (s *server) fromClient(c *net.UnixConn) {
	r := bufio.NewReaderSize(c, 4096)
	for {
		m, err := receive(r)
		s.events <- serverEvent{msg: m, conn: c, err: err}
		if err != nil {
			return
		}
	}
}

// fromDaemon passes on the daemon's messages with the connections in them. The
// socket keeps messages apart, so one read is one message.
func (s *server) fromDaemon() {
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := s.control.ReadMsgUnix(buf, oob)
		if err == nil && n == 0 {
			err = net.ErrClosed
		}
		var e serverEvent
		if err == nil {
			e.taken = handedOver(oob[:oobn])
			err = json.Unmarshal(buf[:n], &e.msg)
		}
		e.err = err
		s.events <- e
		if err != nil {
			return
		}
	}
}

// handedOver returns the connection in a control message; nil for none.
func handedOver(oob []byte) *net.UnixConn {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	unix.CloseOnExec(fds[0])
	f := os.NewFile(uintptr(fds[0]), "client")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil
	}
	return u
}
