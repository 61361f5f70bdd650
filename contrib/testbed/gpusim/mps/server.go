package mps

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// runServer is the server's process: it takes its place on each of its GPUs and keeps its clients' connections, which
// end with it. Descriptor 3 is its socket, 4 its log: its user could open neither.
func runServer() error {
	rename(serverName)
	f := os.NewFile(3, "socket")
	socket, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		return fmt.Errorf("the MPS server is started by %s: %w", controlName, err)
	}
	log := newLog(os.NewFile(4, "log"), "Server")
	log("Startup")
	slots, err := claim()
	defer func() {
		for _, s := range slots {
			_ = s.Release()
		}
	}()
	if err != nil {
		log("Server startup failed: %v", err)
		return err
	}
	var clients sync.WaitGroup
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			clients.Go(func() {
				_, _ = fmt.Fprintln(c, os.Getpid())
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	}()
	fmt.Println("ready")
	switch word, err := bufio.NewReader(os.Stdin).ReadString('\n'); {
	case err != nil: // the daemon is gone; the present clients may finish
		clients.Wait()
	case word == "fault\n":
		return errors.New("fatal fault")
	default:
		log("Server shutdown")
	}
	return nil
}

// claim takes the server's place on its GPUs.
func claim() (slots []*gpusim.Slot, err error) {
	st, err := gpusim.Open("")
	if err != nil {
		return nil, err
	}
	for _, d := range visible(st) {
		s, err := d.ClaimServer(gpusim.Claimant{UID: os.Getuid()})
		if err != nil {
			return slots, fmt.Errorf("GPU %s: %w", d.UUID(), err)
		}
		slots = append(slots, s)
	}
	return slots, nil
}

// visible are the GPUs that this process may use.
func visible(st *gpusim.State) (out []*gpusim.Device) {
	v, set := os.LookupEnv(VisibleEnv)
	for _, i := range gpusim.Visible(v, set, st.UUIDs()) {
		out = append(out, st.Device(i))
	}
	return out
}
