package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
)

// errNoDaemon: there is no answer where the daemon should be.
var errNoDaemon = errors.New("no answer from the daemon")

// ask gets JSON from the running daemon.
func ask(ctx context.Context, cfg *config.Config, server, path string, into any) error {
	url := server
	if url == "" {
		host, port, err := net.SplitHostPort(cfg.Listen)
		if err != nil || port == "" {
			return fmt.Errorf("%w: listen is empty, so it serves nothing; name it with --server", errNoDaemon)
		}
		if host == "" || host == "0.0.0.0" || host == "::" {
			host = "localhost"
		}
		url = "http://" + net.JoinHostPort(host, port)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+path, nil)
	if err != nil {
		return cli.Usage(fmt.Errorf("--server %q is no address: %w", server, err))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w at %s; is it running (systemctl status slurmbridge)? With TLS name it: --server https://HOST:PORT", errNoDaemon, url)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("answer of %s is not what slurmbridge says: %w", url, err)
	}
	return nil
}

func serverFlag(c *cobra.Command, server *string) {
	c.Flags().StringVar(server, "server", "", "the daemon's address, e.g. http://head:9797 (default: this machine, port of `listen`)")
}
