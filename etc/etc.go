// Package etc holds the programs' settings files, which document every setting and its default.
package etc

import _ "embed" // the files below

// Settings is slurmbridge.yaml: a comment and the default for each setting.
//
//go:embed slurmbridge.yaml
var Settings []byte

// Mail is mail.tmpl, the text of mails to users.
//
//go:embed mail.tmpl
var Mail string

// Node is node.yaml, the hooks' settings.
//
//go:embed node.yaml
var Node []byte

// Agent is gpuprof.yaml.
//
//go:embed gpuprof.yaml
var Agent []byte
