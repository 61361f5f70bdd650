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

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
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
	get := func(header, cred string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+path, http.NoBody)
		if err != nil {
			return nil, cli.Usage(fmt.Errorf("--server %q is no address: %w", server, err))
		}
		if cred != "" {
			req.Header.Set(header, cred)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, fmt.Errorf("%w at %s; is it running (systemctl status slurmbridge)? With TLS name it: --server https://HOST:PORT", errNoDaemon, url)
		}
		return resp, nil
	}
	resp, err := get("", "")
	if err != nil {
		return err
	}
	if how := wanted(resp, cfg); how != nil {
		resp.Body.Close()
		name, _, _ := strings.Cut(path, "?")
		cred, err := how.Encode(ctx, httpapi.Question(name))
		if err != nil {
			return fmt.Errorf("the daemon requires a credential: %w: %s", err, how.Hint(err))
		}
		if resp, err = get(how.Header(), cred); err != nil {
			return err
		}
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

// wanted is the credential that a daemon requires; nil = it requires none.
func wanted(resp *http.Response, cfg *config.Config) credential.Method {
	if resp.StatusCode != http.StatusUnauthorized {
		return nil
	}
	return credential.ForUser(resp.Header.Get("WWW-Authenticate"), cfg.MungeSocket)
}

func serverFlag(c *cobra.Command, server *string) {
	c.Flags().StringVar(server, "server", "", "the daemon's address, e.g. http://head:9797 (default: this machine, port of `listen`)")
}
