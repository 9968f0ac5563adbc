"""What a run's encoders look like beside each other, without labels: RUN/diagnostics.json.

    {
      "round": 8,                       the committed round
      "method": "fedfoa", "seed": 0,
      "samples": 256,                   test images, unlabelled, that all numbers are computed on
      "encoders": {                     in the method's order
        "client-0": {"architecture": "cnn", "width": 256, "feature_std": 0.41, "effective_rank": 31.2,
                     "alignment": 0.22, "uniformity": -1.9}, ...
      },
      "matrices": {                     only those that could be computed; {} where there are fewer than two encoders
        "cka": {
          "title": "linear CKA", "unit": "", "range": [0, 1],     range: [low, high], high null where there is none
          "encoders": ["client-0", "client-1"],                   rows and columns
          "clients": [0, 1],                                      their client ids, null for an encoder of no client
          "values": [[1.0, 0.8], [0.8, 1.0]]                      symmetric; null where a pair cannot be compared
        },
        "angle": {...},                 median angle between the features of one image, degrees, [0, 180]
        "relation_distance": {...}      Euclidean distance of relation matrices, [0, null]
      },
      "angles": [{"encoders": ["client-0", "client-1"], "clients": [0, 1], "lower": 31.0, "median": 36.2, "upper": 41.9}, ...],
                                        quartiles of the angles of each pair in degrees, for boxes as in FedCA's Figure 4
      "false_negatives": {              from the labels of the partition, which no client is shown; null without labels
        "clients": [0, 1],              ids of the clients that train
        "local": [0.5, 0.2],            share of negatives of the sample's own class, of the client's own negatives
        "fused": [0.2, 0.1],            of its own and all others' negatives (FCL, Eq. 4)
        "remote": [0.1, 0.1]            of the others' negatives alone (FCL, Eq. 5); null with one client
      },
      "notes": ["..."]                  what could not be computed, and why
    }
"""
