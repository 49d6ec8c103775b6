package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"sync"

	"skerry.dev/skerry"
)

// logReader keeps a server's log in a file and picks out of it what the server
// knows better than its client.
type logReader struct {
	path      string
	file      *os.File
	listening chan string   // gets the server's URL
	ended     chan struct{} // closed at the end of the log

	mu        sync.Mutex
	steps     map[skerry.SandboxID]map[string]float64 // ms by step; guarded by mu
	fromPool  map[skerry.SandboxID]bool               // guarded by mu
	templates []float64                               // ms each took to make; guarded by mu
	still     map[skerry.SandboxID]float64            // ms the last save took away; guarded by mu
	frozen    map[skerry.SandboxID]float64            // ms the last copy of the disk took away; guarded by mu
}

// logRecord is a line of the log.
type logRecord struct {
	Message   string             `json:"msg"`
	URL       string             `json:"url"`
	SandboxID skerry.SandboxID   `json:"sandbox_id"`
	Pool      bool               `json:"pool"`
	Steps     map[string]float64 `json:"steps"` // microseconds
	DurMS     float64            `json:"dur_ms"`

	StillMicros  float64 `json:"still_micros"`
	FrozenMicros float64 `json:"frozen_micros"`
}

func readLog(path string) (*logReader, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &logReader{path: path, file: f, listening: make(chan string, 1), ended: make(chan struct{}),
		steps: map[skerry.SandboxID]map[string]float64{}, fromPool: map[skerry.SandboxID]bool{},
		still: map[skerry.SandboxID]float64{}, frozen: map[skerry.SandboxID]float64{}}, nil
}

// run reads until the server closes its end. It must not fail: a server whose
// log is not read stops.
func (l *logReader) run(r io.Reader) {
	defer close(l.ended)
	defer l.file.Close()
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		l.file.Write(line) // for people only
		var rec logRecord
		if json.Unmarshal(line, &rec) == nil {
			l.take(rec)
		}
		if err != nil {
			return
		}
	}
}

func (l *logReader) take(rec logRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch rec.Message {
	case "listening":
		select {
		case l.listening <- rec.URL:
		default:
		}
	case "sandbox running":
		ms := map[string]float64{"runner total": rec.DurMS}
		for name, micros := range rec.Steps {
			ms["runner: "+name] = micros / 1000
		}
		l.steps[rec.SandboxID], l.fromPool[rec.SandboxID] = ms, rec.Pool
	case "sandbox saved":
		l.still[rec.SandboxID] = rec.StillMicros / 1000
	case "disk copied":
		l.frozen[rec.SandboxID] = rec.FrozenMicros / 1000
	case "template made":
		l.templates = append(l.templates, rec.DurMS)
	}
}

// of returns what the log says of a sandbox.
func (l *logReader) of(id skerry.SandboxID) (steps map[string]float64, fromPool bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.steps[id], l.fromPool[id]
}

// stillOf returns for how long the last save of a sandbox stopped it, frozenOf
// for how long the last copy of its disk held its writes back; in milliseconds.
func (l *logReader) stillOf(id skerry.SandboxID) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.still[id]
}

func (l *logReader) frozenOf(id skerry.SandboxID) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frozen[id]
}

func (l *logReader) templatesMade() []float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.templates
}
